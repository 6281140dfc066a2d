"""Defines the handles that TorchDriver returns: streams, graphs and pools, and when each of them is freed."""

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
    """A lock for captures, the memory of buffers, and the end of graphs. Reentrant.

    torch 2.11 keeps its graphs in a set without a lock, which a capture adds to and the end of a graph takes from. A
    graph may end on any thread, also where the collector runs, so it never waits here: it ends at once where no thread
    is inside, else when the thread inside comes out.
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
        """Frees what a list holds, from the front; the caller keeps no reference to the list."""
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
    """A stream of one owner."""

    def __init__(self, name: str, raw: int, device: torch.device, free: deque[int]) -> None:
        """Wraps a stream. free: gets the stream back when this object is freed."""
        #: Name for traces.
        self.name = name
        #: CUDA's handle.
        self.raw = raw
        #: torch's handle.
        self.torch = torch.cuda.ExternalStream(raw, device=device)  # type: ignore[no-untyped-call]
        # Graphs that were captured on it, while any of them is in use.
        self.captured: weakref.ref[Captured] | None = None
        weakref.finalize(self, free.append, raw).atexit = False


class Captured:
    """The graphs of one stream, which go together, before the stream does."""

    def __init__(self, stream: CudaStream, exclusive: Exclusive) -> None:
        """Starts without graphs; see `of`."""
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self._stream = stream
        self._exclusive = exclusive

    @staticmethod
    def of(stream: CudaStream, exclusive: Exclusive) -> Captured:
        """Returns the stream's graphs that are in use, or none yet.

        One capture of a stream at a time. exclusive: ends them.
        """
        captured = None if stream.captured is None else stream.captured()
        if captured is None:
            captured = Captured(stream, exclusive)
            stream.captured = weakref.ref(captured)
        return captured

    def __del__(self) -> None:
        # No other reference may be left, not even here: the graphs are freed in the list alone.
        held: list[Any] = self.graphs
        self.graphs = []
        held.append(self._stream)
        self._exclusive.end(held)


class CudaGraph:
    """A captured graph, kept until neither it nor another graph of its stream is referenced."""

    def __init__(self, graph: torch.cuda.CUDAGraph, captured: Captured) -> None:
        self.replay = graph.replay
        self._captured = captured


class CudaPool:
    """Memory of graphs. torch keeps a pool as long as a graph uses it, and needs another name for the next one."""

    def __init__(self) -> None:
        self._name: Any = None
        self._users: weakref.ref[Captured] | None = None

    def name_for(self, captured: Captured) -> Any:
        """Returns torch's name of the pool, for a capture that `captured` will hold."""
        if self._users is None or self._users() is None:
            self._name = torch.cuda.graph_pool_handle()
        self._users = weakref.ref(captured)
        return self._name

    def forget(self) -> None:
        """Makes the next capture take another pool."""
        self._users = None


class _Pauses:
    lock = threading.Lock()
    inside = 0
    was_on = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses garbage collection while any thread is inside."""
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
