"""Emulates pinned memory as the host sees it during copies: a test cannot watch the host's accesses, only the bytes.

A copy to the device takes its bytes when it is put on a stream; they must be unchanged when the host learns that it
is complete. A copy to the host fills its target with POISON at once, and its bytes appear when the host learns that it
is complete; the poison must be unchanged until then. So neither depends on when the copy runs.
"""

from __future__ import annotations

import numpy as np

from tests.simulated_gpu.ordering import Clock, Operation

# As floats NaN, as integers -1 or the largest.
POISON = 0xFF


class Flight:
    """Bytes being copied, `begin` to `end` of a pinned buffer.

    content: None as long as a copy to the host has not run. under: earlier copies into these bytes whose results the
    device sees, but the host did not see when this began. covered: later copies to the host that write these bytes.
    is_shown: whether the host sees the result.
    """

    __slots__ = ("begin", "content", "covered", "end", "is_shown", "operation", "under")

    def __init__(self, operation: Operation, begin: int, end: int, content: np.ndarray | None) -> None:
        self.operation = operation
        self.begin = begin
        self.end = end
        self.content = content
        self.under: tuple[Flight, ...] = ()
        self.covered: list[Flight] = []
        self.is_shown = False

    def meets(self, begin: int, end: int) -> bool:
        """Returns whether the two ranges overlap."""
        return self.begin < end and begin < self.end

    def sent(self) -> np.ndarray:
        """Returns the bytes that a copy to the device moves, once all earlier operations ran."""
        assert self.content is not None
        for earlier in self.under:
            if earlier.content is not None:
                begin, end = max(self.begin, earlier.begin), min(self.end, earlier.end)
                self.content[begin - self.begin : end - self.begin] = earlier.content[
                    begin - earlier.begin : end - earlier.begin
                ]
        return self.content

    def is_changed(self, array: np.ndarray) -> bool:
        """Returns whether the host changed bytes that a copy to the device moves, where both should be equal."""
        now = array[self.begin : self.end]
        if np.array_equal(now, self.content):  # type: ignore[arg-type]
            return False
        differs = now != self.sent()
        for other in (*self.covered, *(earlier for earlier in self.under if not earlier.is_shown)):
            differs[max(0, other.begin - self.begin) : max(0, other.end - self.begin)] = False
        return bool(differs.any())


class HostView:
    """The host's view of one pinned buffer. Methods return the host's mistakes, as messages for a RaceError."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._outgoing: list[Flight] = []
        self._incoming: list[Flight] = []

    @property
    def is_quiet(self) -> bool:
        """Returns whether no copy is under way."""
        return not self._outgoing and not self._incoming

    def send(self, array: np.ndarray, operation: Operation, begin: int, end: int) -> tuple[Flight, list[str]]:
        """Registers a copy that reads these bytes."""
        wrong = self._changed([flight for flight in self._outgoing if flight.meets(begin, end)], array)
        flight = Flight(operation, begin, end, array[begin:end].copy())
        flight.under = tuple(earlier for earlier in self._incoming if earlier.meets(begin, end))
        self._outgoing.append(flight)
        return flight, wrong

    def receive(self, array: np.ndarray, operation: Operation, begin: int, end: int) -> tuple[Flight, list[str]]:
        """Registers a copy that writes these bytes."""
        met = [flight for flight in self._outgoing if flight.meets(begin, end)]
        wrong = self._changed(met, array) + self._touched(array)
        array[begin:end] = POISON
        flight = Flight(operation, begin, end, None)
        self._incoming.append(flight)
        for earlier in met:
            earlier.covered.append(flight)
        return flight, wrong

    def settle(self, array: np.ndarray, clock: Clock) -> list[str]:
        """Tells the host that all that a clock has reached is complete; all of it must have run."""
        wrong = self._changed([flight for flight in self._outgoing if flight.operation.is_known(clock)], array)
        wrong += self._touched(array)
        self._outgoing = [flight for flight in self._outgoing if not flight.operation.is_known(clock)]
        for flight in self._incoming:
            if flight.operation.is_known(clock):
                flight.is_shown = True
                if flight.content is not None:
                    array[flight.begin : flight.end] = flight.content
        self._incoming = [flight for flight in self._incoming if not flight.is_shown]
        for flight in self._incoming:
            array[flight.begin : flight.end] = POISON
        return wrong

    def clear(self) -> None:
        """Forgets all copies, because the GPU is lost."""
        self._outgoing = []
        self._incoming = []

    def _changed(self, flights: list[Flight], array: np.ndarray) -> list[str]:
        """Reports the copies whose bytes have changed, each once."""
        wrong: list[str] = []
        for flight in flights:
            if flight.is_changed(array):
                wrong.append(
                    f"the host wrote to {self._name}[{flight.begin}:{flight.end}] while {flight.operation} copies from "
                    "it: synchronize before that"
                )
                self._outgoing.remove(flight)
        return wrong

    def _touched(self, array: np.ndarray) -> list[str]:
        """Reports the copies to the host whose poison was overwritten, each once."""
        wrong: list[str] = []
        for flight in self._incoming:
            if (array[flight.begin : flight.end] != POISON).any():
                wrong.append(
                    f"the host wrote to {self._name}[{flight.begin}:{flight.end}] while {flight.operation} copies to "
                    "it: synchronize before that"
                )
                array[flight.begin : flight.end] = POISON
        return wrong
