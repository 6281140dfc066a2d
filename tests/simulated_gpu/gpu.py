"""Holds the state of a simulated GPU: its buffers, pending operations, what the host waited for, and mistakes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from weakref import WeakSet, ref

from tests.simulated_gpu.buffers import Buffer, Buffers, Part
from tests.simulated_gpu.graphs import Graph
from tests.simulated_gpu.host_view import Flight
from tests.simulated_gpu.mistakes import LifetimeError, MisuseError, RaceError
from tests.simulated_gpu.ordering import Clock, Event, History, Host, Operation, Stream
from tests.simulated_gpu.schedule import Schedule
from tests.simulated_gpu.steps import Step

_MAX_ERRORS = 100
# An access: its history, the first byte, the end, whether it writes, and the part or object for messages.
Access = tuple[History, int, int, bool, object]


class Gpu:
    """The state of one GPU. The caller holds the driver's lock.

    errors: every mistake, in order. lost: the GPU is lost, and its memory is no longer checked.
    """

    def __init__(self, schedule: str, seed: int, threads: str) -> None:
        """See SimulatedDriver."""
        if threads not in ("together", "apart"):
            raise ValueError(f"threads are together or apart, not {threads!r}")
        self.errors: list[MisuseError] = []
        self.schedule = Schedule(schedule, seed, self._operation_failed)
        self.buffers = Buffers()
        # Buffers of other GPUs that its kernels may access.
        self.peers: dict[int, Buffers] = {}
        self.lost = False
        self._put_so_far = 0
        self._flying: dict[Buffer, None] = {}
        self._graphs: dict[ref[Graph], tuple[str, History]] = {}
        self._dropped: deque[ref[Graph]] = deque()
        self._apart = threads == "apart"
        self._known = Host({}, 0)
        self._threads = threading.local()
        self._hosts: WeakSet[Host] = WeakSet()

    @property
    def graphs(self) -> int:
        """The number of graphs that are still referenced."""
        return len(self._graphs)

    def keep(self, graph: Graph) -> None:
        """Registers a new graph, to be notified when its handle is dropped."""
        self._graphs[ref(graph, self._dropped.append)] = (str(graph), graph.launches)

    def lose(self) -> None:
        """Discards all pending operations."""
        self.lost = True
        self.schedule.clear()
        self._flying.clear()

    def mistake(self, error: MisuseError) -> MisuseError:
        """Records a mistake; returns the error, to be raised."""
        if error not in self.errors and len(self.errors) < _MAX_ERRORS:
            self.errors.append(error)
        return error

    def synchronize(self, event: Event, clock: Clock) -> None:
        """Runs the operations that a clock has reached; the calling thread then knows that they are complete."""
        host = self.host()
        self.schedule.run_until(clock)
        failed: list[Exception] = list(self._settle(clock))
        for stream in self.schedule.streams:
            before, now = host.clock.get(stream.number, 0), clock.get(stream.number, 0)
            failed += [error for number, error in stream.failures if before < number <= now]
        host.learn(clock, event.level)
        self._known.learn(clock, event.level)
        if failed:
            self._forget_failures()
            try:
                raise failed[0]
            finally:
                # Otherwise the error would reference itself, and with it the tensors of all frames that it passed.
                failed.clear()

    def finish(self) -> None:
        """Runs everything, and marks it as known to be complete."""
        self.collect()
        if not self.lost:
            self.schedule.run_all()
            clock = {stream.number: stream.put for stream in self.schedule.streams}
            self._settle(clock)
            self._known.learn(clock, 0)

    def enqueue(
        self,
        stream: Stream,
        kind: str,
        name: str,
        steps: tuple[Step, ...],
        reads: Sequence[Part],
        writes: Sequence[Part],
        others: tuple[Access, ...] = (),
    ) -> None:
        """Puts an operation on a stream. others: additional accesses.

        Raises RaceError, and any error of the operation itself if it runs at once.
        """
        stream.follow_host(self.host())
        accesses: list[Access] = [(part.buffer.history, part.begin, part.end, False, part) for part in reads]
        accesses += [(part.buffer.history, part.begin, part.end, True, part) for part in writes]
        accesses += others
        accesses += [
            (part.buffer.uses, 0, 1, False, part) for step in steps for part in step.shared if part.buffer.is_alive
        ]
        operation = Operation(stream, self._put_so_far, kind, name, steps)
        for history, begin, end, is_write, what in accesses:
            conflict = history.conflict(begin, end, is_write, stream)
            if conflict is not None:
                raise self.mistake(
                    RaceError(
                        f"{operation} {'writes' if is_write else 'reads'} {what}, and {conflict[0]} {conflict[1]} it: "
                        "nothing says that it is complete; record an event behind it, and wait for that or synchronize"
                    )
                )
        for history, begin, end, is_write, _ in accesses:
            history.add(begin, end, is_write, operation)
            if history.is_long():
                history.forget(self._known_to_all())
        self._put_so_far += 1
        stream.put += 1
        stream.level += 1
        wrong: list[str] = []
        operation.flights = [self._flight(step, operation, wrong) for step in steps]
        self.schedule.put(operation)
        mistakes = [self.mistake(RaceError(text)) for text in wrong]
        if mistakes:
            raise mistakes[0]
        if self.schedule.is_eager and stream.failures:
            raise stream.failures.pop()[1]

    def _flight(self, step: Step, operation: Operation, wrong: list[str]) -> Flight | None:
        """Registers the pinned bytes that a step moves."""
        part = step.pinned
        if part is None:
            return None
        view = part.buffer.host_view
        assert view is not None
        move = view.receive if part in step.writes else view.send
        flight, told = move(part.buffer.array(), operation, part.begin, part.end)
        self._flying[part.buffer] = None
        wrong += told
        return flight

    def _settle(self, clock: Clock) -> list[MisuseError]:
        """Shows the host the results of all that a clock has reached, and checks what the host did meanwhile."""
        wrong: list[str] = []
        for buffer in list(self._flying):
            view = buffer.host_view
            if buffer.is_alive and view is not None:
                wrong += view.settle(buffer.array(), clock)
                if not view.is_quiet:
                    continue
            del self._flying[buffer]
        return [self.mistake(RaceError(text)) for text in wrong]

    def host(self) -> Host:
        """Returns what the calling thread knows."""
        if not self._apart:
            return self._known
        host: Host | None = getattr(self._threads, "host", None)
        if host is None:
            # The thread that started this one passed on what was known then.
            host = self._threads.host = Host(self._known.clock, self._known.level)
            self._hosts.add(host)
        return host

    def _known_to_all(self) -> Clock:
        if not self._apart:
            return self._known.clock
        hosts = list(self._hosts)
        return {n: min(host.clock.get(n, 0) for host in hosts) for n in range(len(self.schedule.streams))}

    def _forget_failures(self) -> None:
        known = self._known_to_all()
        for stream in self.schedule.streams:
            if stream.failures:
                least = known.get(stream.number, 0)
                stream.failures = [failure for failure in stream.failures if failure[0] > least]

    def collect(self) -> None:
        """Handles the buffers and graphs that were dropped."""
        self.check_gone(self.buffers.collect())
        while self._dropped:
            name, launches = self._graphs.pop(self._dropped.popleft())
            self._check_complete(name, launches)

    def check_gone(self, buffers: list[Buffer]) -> None:
        """Records a mistake for each dropped buffer that may still be in use by an operation."""
        for buffer in buffers:
            for history in (buffer.history, buffer.uses):
                self._check_complete(f"{buffer} of {buffer.size} bytes", history)

    def _check_complete(self, what: str, history: History) -> None:
        user = None if self.lost else history.unknown(self._known.clock)
        if user is not None:
            self.mistake(LifetimeError(f"{what} was dropped, and nothing says that {user}, which uses it, is complete"))

    def _operation_failed(self, error: Exception) -> None:
        if isinstance(error, MisuseError):
            self.mistake(error)
