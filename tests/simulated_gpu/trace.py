"""What a simulated GPU ran, and what could have run beside it."""

from __future__ import annotations

from typing import NamedTuple

from tests.simulated_gpu.ordering import Clock, Operation


class Executed(NamedTuple):
    """One operation. start, end: in steps, had each operation taken one and streams run beside each other.

    number: of those of its stream, from 1. before: as many of each other stream come before it.
    """

    stream: str
    name: str
    kind: str
    start: int
    end: int
    stream_number: int
    number: int
    before: Clock

    @classmethod
    def of(cls, operation: Operation) -> Executed:
        """Before the operation is released."""
        stream = operation.stream
        return cls(
            stream.name,
            operation.name,
            operation.kind,
            operation.level,
            operation.level + 1,
            stream.number,
            operation.number,
            operation.needs,
        )

    def precedes(self, other: Executed) -> bool:
        """Whether streams, events and the host let it come first in every schedule."""
        if self.stream_number == other.stream_number:
            return self.number < other.number
        return self.number <= other.before.get(self.stream_number, 0)


def overlap(one: Executed, other: Executed) -> bool:
    """Whether nothing orders the two: a GPU may run them at the same time."""
    return not one.precedes(other) and not other.precedes(one)
