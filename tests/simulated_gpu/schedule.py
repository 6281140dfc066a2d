"""Decides when operations run: at once, when they must, or at any time in between."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from tests.simulated_gpu.ordering import Clock, Operation, Stream
from tests.simulated_gpu.trace import Executed

# A GPU that is never waited for, one that is always late, and one that may be anything.
SCHEDULES = ("eager", "lazy", "random")
# Weights with which streams are chosen: some streams lag far behind, some run ahead.
_WEIGHTS = (0.02, 0.3, 1.0, 1.0)
_MAX_TRACE = 20_000


class Schedule:
    """The queues of a driver's streams. The caller holds the driver's lock.

    running: whether an operation runs right now; it must not call the driver.
    """

    def __init__(self, kind: str, seed: int, failed: Callable[[Exception], None]) -> None:
        """failed: called with each error that an operation raised."""
        if kind not in SCHEDULES:
            raise ValueError(f"a schedule is one of {', '.join(SCHEDULES)}, not {kind!r}")
        self.is_eager = kind == "eager"
        self.is_random = kind == "random"
        self.running = False
        self.streams: list[Stream] = []
        self.ran: deque[Executed] = deque(maxlen=_MAX_TRACE)
        self._failed = failed
        self._random = random.Random(seed)
        self._busy: dict[int, Stream] = {}

    def weight(self) -> float:
        """Returns the weight of a new stream."""
        return self._random.choice(_WEIGHTS)

    def put(self, operation: Operation) -> None:
        """Appends an operation to its stream; it may run now."""
        stream = operation.stream
        stream.queue.append(operation)
        self._busy[stream.number] = stream
        if self.is_eager:
            self.run_all()

    def wander(self) -> None:
        """May run some operations now, or none."""
        while self._busy and self._random.random() < 0.4:
            ready = [stream for stream in self._busy.values() if stream.queue[0].is_ready(self.streams)]
            self._run(self._any_of(ready))

    def run_until(self, clock: Clock) -> None:
        """Runs the operations that a clock has reached."""
        while behind := [stream for stream in self._busy.values() if stream.done < clock.get(stream.number, 0)]:
            if self.is_random:
                self._run(self._any_of([stream for stream in behind if stream.queue[0].is_ready(self.streams)]))
                self.wander()
            else:
                # Every operation that another waits for was put before it.
                self._run(min(behind, key=lambda stream: stream.queue[0].order))

    def run_all(self) -> None:
        """Runs all operations."""
        while self._busy:
            self.run_until({stream.number: stream.put for stream in self._busy.values()})

    def clear(self) -> None:
        """Discards all operations that have not run."""
        for stream in self._busy.values():
            stream.queue.clear()
        self._busy.clear()

    def _any_of(self, streams: list[Stream]) -> Stream:
        return self._random.choices(streams, [stream.weight for stream in streams])[0]

    def _run(self, stream: Stream) -> None:
        operation = stream.queue.popleft()
        if not stream.queue:
            del self._busy[stream.number]
        stream.done = operation.number
        self.ran.append(Executed.of(operation))
        self.running = True
        try:
            for step, flight in zip(operation.steps, operation.flights, strict=True):
                step.run(flight)
        except Exception as error:
            stream.failures.append((operation.number, error))
            self._failed(error)
        finally:
            self.running = False
            operation.release()
