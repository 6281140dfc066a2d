"""What TorchDriver gives out: streams, graphs and pools, and when each of them goes."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch


class Exclusive:
    """One thread at a time: captures, the memory of buffers, and the end of graphs. Reentrant.

    torch 2.11 keeps its graphs in a set without a lock, which a capture adds to and the end of a graph takes from. A
    graph may go on any thread, also where the collector runs, so it never waits here: it goes at once where nobody is
    inside, else when whoever is inside comes out.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._inside = 0
        self._going: deque[list[Any]] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._inside += 1

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        self._lock.release()
        self._sweep()

    def end(self, held: list[Any]) -> None:
        """Lets go of what a list holds, from the front; the list is nobody else's from now on."""
        self._going.append(held)
        self._sweep()

    def _sweep(self) -> None:
        while self._going and self._lock.acquire(blocking=False):
            try:
                if self._inside:  # this thread, further out
                    return
                with suppress(IndexError):  # another thread was here in between
                    held = self._going.popleft()
                    while held:
                        del held[0]
            finally:
                self._lock.release()


class CudaStream:
    """A stream that nobody else has. torch, raw: as torch and as CUDA call it. name: for traces."""

    def __init__(self, name: str, raw: int, device: torch.device, free: deque[int]) -> None:
        """free: takes the stream when this object goes."""
        self.name = name
        self.raw = raw
        self.torch = torch.cuda.ExternalStream(raw, device=device)  # type: ignore[no-untyped-call]
        # Graphs that were captured on it, while any of them is in use.
        self.captured: weakref.ref[Captured] | None = None
        weakref.finalize(self, free.append, raw).atexit = False


class Captured:
    """The graphs of one stream, which go together, before the stream does."""

    def __init__(self, stream: CudaStream, exclusive: Exclusive) -> None:
        """See `of`."""
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self._stream = stream
        self._exclusive = exclusive

    @staticmethod
    def of(stream: CudaStream, exclusive: Exclusive) -> Captured:
        """Those that are in use, or none yet. One capture of a stream at a time. exclusive: ends them."""
        captured = None if stream.captured is None else stream.captured()
        if captured is None:
            captured = Captured(stream, exclusive)
            stream.captured = weakref.ref(captured)
        return captured

    def __del__(self) -> None:
        # No other reference is left, neither here: where a graph goes is in the list alone.
        held: list[Any] = self.graphs
        self.graphs = []
        held.append(self._stream)
        self._exclusive.end(held)


class CudaGraph:
    """A captured graph, until nobody has it or another one of its stream."""

    def __init__(self, graph: torch.cuda.CUDAGraph, captured: Captured) -> None:
        self.replay = graph.replay
        self._captured = captured


class CudaPool:
    """Memory of graphs. torch has a pool as long as a graph uses it, and wants another name for the next one."""

    def __init__(self) -> None:
        self._name: Any = None
        self._users: weakref.ref[Captured] | None = None

    def name_for(self, captured: Captured) -> Any:
        """What torch calls it, for a capture that `captured` will hold."""
        if self._users is None or self._users() is None:
            self._name = torch.cuda.graph_pool_handle()
        self._users = weakref.ref(captured)
        return self._name

    def forget(self) -> None:
        """The next capture takes another pool."""
        self._users = None


class _Pauses:
    lock = threading.Lock()
    inside = 0
    was_on = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection while any thread is inside."""
    with _Pauses.lock:
        if _Pauses.inside == 0:
            _Pauses.was_on = gc.isenabled()
            gc.disable()
        _Pauses.inside += 1
    try:
        yield
    finally:
        with _Pauses.lock:
            _Pauses.inside -= 1
            if _Pauses.inside == 0 and _Pauses.was_on:
                gc.enable()
