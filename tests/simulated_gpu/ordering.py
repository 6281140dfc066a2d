"""Tracks the happens-before order: streams, events, and for every byte the operations that touched it last.

A vector clock has a number for each stream: so many operations of it come before. It is the happens-before order of
Lamport (1978), kept as FastTrack does (Flanagan and Freund, 2009): an access is one number of one stream, and it comes
before an operation if that operation's clock has reached it. A clock is never changed after it was handed on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulated_gpu.host_view import Flight
    from tests.simulated_gpu.steps import Step

Clock = Mapping[int, int]
# Bytes whose accesses are all known to everybody are forgotten when there are more pieces than this.
_MAX_SPANS = 64


def joined(one: Clock, other: Clock) -> Clock:
    """Returns the smallest clock that has reached both; one of the two itself where it has."""
    if all(one.get(stream, 0) >= number for stream, number in other.items()):
        return one
    both = dict(one)
    for stream, number in other.items():
        if number > both.get(stream, 0):
            both[stream] = number
    return both


class Stream:
    """A stream's handle and its queue. driver: the driver that made it.

    before: operations that come before the next one, besides those of the stream itself. put, done: operations that
    were put on it, that ran. level: steps until it is idle, if each operation took one step.
    """

    def __init__(self, driver: object, number: int, name: str, weight: float) -> None:
        self.driver = driver
        self.number = number
        self.name = name
        self.weight = weight
        self.before: Clock = {}
        self.host_seen: Clock = {}
        self.put = 0
        self.done = 0
        self.level = 0
        self.queue: deque[Operation] = deque()
        self.failures: list[tuple[int, Exception]] = []
        self.is_capturing = False

    def __repr__(self) -> str:
        return f"stream {self.name!r}"

    def clock(self) -> Clock:
        """Returns a clock of everything put on it so far, and of what comes before that."""
        return {**self.before, self.number: self.put}

    def follow(self, clock: Clock, level: int) -> None:
        """Orders everything put on it from now on after the clock."""
        self.before = joined(self.before, clock)
        self.level = max(self.level, level)

    def follow_host(self, host: Host) -> None:
        """Orders everything put on it from now on after what the host knows to be complete."""
        if self.host_seen is not host.clock:
            self.host_seen = host.clock
            self.follow(host.clock, host.level)


class Event:
    """An event. clock: the operations that it covers, None before it was recorded."""

    def __init__(self, driver: object, number: int) -> None:
        self.driver = driver
        self.number = number
        self.clock: Clock | None = None
        self.level = 0

    def __repr__(self) -> str:
        return f"event {self.number}"


class Host:
    """The knowledge of a host thread. clock: the operations that it knows to be complete."""

    def __init__(self, clock: Clock, level: int) -> None:
        self.clock = clock
        self.level = level

    def learn(self, clock: Clock, level: int) -> None:
        """Adds the operations of an event that the thread has waited for."""
        self.clock = joined(self.clock, clock)
        self.level = max(self.level, level)


class Operation:
    """One operation of a stream.

    needs: the operations that come before. flights: for each step, the pinned bytes that it moves.
    """

    __slots__ = ("flights", "kind", "level", "name", "needs", "number", "order", "steps", "stream")

    def __init__(self, stream: Stream, order: int, kind: str, name: str, steps: tuple[Step, ...]) -> None:
        self.stream = stream
        self.number = stream.put + 1
        self.order = order
        self.kind = kind
        self.name = name
        self.steps = steps
        self.needs = stream.before
        self.level = stream.level
        self.flights: list[Flight | None] = []

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} on {self.stream}"

    def is_known(self, clock: Clock) -> bool:
        """Returns whether a clock has reached it."""
        return self.number <= clock.get(self.stream.number, 0)

    def is_ready(self, streams: list[Stream]) -> bool:
        """Returns whether all operations that come before it ran."""
        return all(streams[stream].done >= number for stream, number in self.needs.items())

    def release(self) -> None:
        """Drops what is no longer needed after it ran; only its description for messages stays."""
        self.steps = ()
        self.flights = []
        self.needs = {}


class _Span:
    """Bytes with one history. reads: the last read of each stream since the write."""

    __slots__ = ("begin", "end", "reads", "write")

    def __init__(self, begin: int, end: int, write: Operation | None, reads: dict[int, Operation]) -> None:
        self.begin = begin
        self.end = end
        self.write = write
        self.reads = reads


def _end(span: _Span) -> int:
    return span.end


class History:
    """The last accesses to the bytes of a buffer: disjoint spans, in order; bytes without a span were never touched."""

    __slots__ = ("_limit", "_spans")

    def __init__(self) -> None:
        self._spans: list[_Span] = []
        self._limit = _MAX_SPANS

    def conflict(self, begin: int, end: int, is_write: bool, stream: Stream) -> tuple[Operation, str] | None:
        """Returns an operation that an access from the stream now would race with, and whether it reads or writes."""
        spans = self._spans
        before = stream.before
        for place in range(bisect_right(spans, begin, key=_end), len(spans)):
            span = spans[place]
            if span.begin >= end:
                break
            write = span.write
            if write is not None and write.stream is not stream and write.number > before.get(write.stream.number, 0):
                return write, "writes"
            if is_write:
                for read in span.reads.values():
                    if read.stream is not stream and read.number > before.get(read.stream.number, 0):
                        return read, "reads"
        return None

    def add(self, begin: int, end: int, is_write: bool, operation: Operation) -> None:
        """Adds an access that races with none."""
        first, last = self._cut(begin), self._cut(end)
        if is_write:
            self._spans[first:last] = [_Span(begin, end, operation, {})]
            return
        stream = operation.stream.number
        read: list[_Span] = []
        for span in self._spans[first:last]:
            if span.begin > begin:
                read.append(_Span(begin, span.begin, None, {stream: operation}))
            span.reads[stream] = operation
            read.append(span)
            begin = span.end
        if begin < end:
            read.append(_Span(begin, end, None, {stream: operation}))
        self._spans[first:last] = read

    def unknown(self, clock: Clock) -> Operation | None:
        """Returns an operation that a clock has not reached, or None."""
        for span in self._spans:
            for operation in (span.write, *span.reads.values()):
                if operation is not None and not operation.is_known(clock):
                    return operation
        return None

    def is_long(self) -> bool:
        """Returns whether there are so many spans that `forget` should be called."""
        return len(self._spans) > self._limit

    def forget(self, known: Clock) -> None:
        """Drops accesses that can race with nothing any more. known: the clock that every host thread has reached."""
        kept = []
        for span in self._spans:
            reads = {stream: read for stream, read in span.reads.items() if not read.is_known(known)}
            write = None if span.write is None or span.write.is_known(known) else span.write
            if reads or write:
                kept.append(_Span(span.begin, span.end, write, reads))
        self._spans = kept
        self._limit = max(_MAX_SPANS, 2 * len(kept))

    def _cut(self, at: int) -> int:
        """Makes `at` a border of spans; returns the index of the first span behind it."""
        spans = self._spans
        place = bisect_right(spans, at, key=_end)
        if place < len(spans) and spans[place].begin < at:
            span = spans[place]
            spans[place : place + 1] = [
                _Span(span.begin, at, span.write, dict(span.reads)),
                _Span(at, span.end, span.write, span.reads),
            ]
            return place + 1
        return place
