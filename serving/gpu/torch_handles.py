"""What TorchDriver gives out: streams, graphs and pools, and when each of them goes."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


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

    def __init__(self, stream: CudaStream) -> None:
        """See `of`."""
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self._stream = stream

    @staticmethod
    def of(stream: CudaStream) -> Captured:
        """Those that are in use, or none yet. One capture of a stream at a time."""
        captured = None if stream.captured is None else stream.captured()
        if captured is None:
            captured = Captured(stream)
            stream.captured = weakref.ref(captured)
        return captured

    def __del__(self) -> None:
        self.graphs.clear()


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
