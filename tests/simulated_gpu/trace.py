"""Records what a simulated GPU ran, and what could have run at the same time."""

from __future__ import annotations

from typing import NamedTuple

from tests.simulated_gpu.ordering import Clock, Operation


class Executed(NamedTuple):
    """One operation. start, end: in steps, if each operation took one step and streams ran beside each other.

    number: its number in its stream, from 1. before: for each other stream, how many of its operations come before.
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
        """Makes the record, before the operation is released."""
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
        """Returns whether streams, events and the host order it first in every schedule."""
        if self.stream_number == other.stream_number:
            return self.number < other.number
        return self.number <= other.before.get(self.stream_number, 0)


def overlap(one: Executed, other: Executed) -> bool:
    """Returns whether the two are unordered: a GPU may run them at the same time."""
    return not one.precedes(other) and not other.precedes(one)
