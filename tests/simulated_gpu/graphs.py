"""Captured graphs: sequences of steps over buffers that they do not keep alive."""

from __future__ import annotations

from tests.simulated_gpu.buffers import Part
from tests.simulated_gpu.ordering import History, Stream
from tests.simulated_gpu.steps import Step, union


class Pool:
    """The memory of graphs that never run at the same time: each launch counts as a write to it."""

    def __init__(self, driver: object, number: int) -> None:
        self.driver = driver
        self.number = number
        self.history = History()

    def __str__(self) -> str:
        return f"pool {self.number}"


class Recording:
    """A capture under way. broken: the error that invalidates it, even if that error was swallowed."""

    def __init__(self, name: str, stream: Stream) -> None:
        self.name = name
        self.stream = stream
        self.steps: list[Step] = []
        self.broken: Exception | None = None


class Graph:
    """A graph's handle, which alone keeps the graph alive.

    launches: counted as reads, to know which are not yet complete.
    """

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
        """Returns a part of a dropped buffer that the graph uses, or None."""
        return next((part for part in (*self.reads, *self.writes) if not part.buffer.is_alive), None)
