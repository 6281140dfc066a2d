"""Captured graphs: steps in order, of buffers that they do not keep."""

from __future__ import annotations

from tests.simulated_gpu.buffers import Part
from tests.simulated_gpu.ordering import History, Stream
from tests.simulated_gpu.steps import Step, union


class Pool:
    """Memory of graphs that never run at the same time: each launch counts as a write to it."""

    def __init__(self, driver: object, number: int) -> None:
        self.driver = driver
        self.number = number
        self.history = History()

    def __str__(self) -> str:
        return f"pool {self.number}"


class Recording:
    """A capture under way. broken: why nothing will come of it, even if nobody lets the error through."""

    def __init__(self, name: str, stream: Stream) -> None:
        self.name = name
        self.stream = stream
        self.steps: list[Step] = []
        self.broken: Exception | None = None


class Graph:
    """A handle, and the only one who keeps the graph. launches: counted as reads, to know who is not yet complete."""

    def __init__(self, driver: object, recording: Recording, pool: Pool) -> None:
        self.driver = driver
        self.name = recording.name
        self.pool = pool
        self.steps = tuple(recording.steps)
        self.reads, self.writes = union(self.steps)
        self.launches = History()

    def __str__(self) -> str:
        return f"graph {self.name!r}"

    def gone(self) -> Part | None:
        """What it uses of a buffer that was dropped."""
        return next((part for part in (*self.reads, *self.writes) if not part.buffer.is_alive), None)
