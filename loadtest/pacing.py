"""Tells the users of one process when to send, and counts what became of their requests.

A request of an open loop is due at a time that was fixed before, and its latency counts from that time. When the server
is slow and no connection is free, requests are sent late, and the wait is part of their latency: a generator that
stopped its clock meanwhile would hide what it should show (coordinated omission).
"""

from __future__ import annotations

import ctypes
import math
import os
import random
import time
from dataclasses import dataclass
from typing import Any

import gevent
import gevent.event

from loadtest.arrivals import Arrivals
from loadtest.counts import SecondCounts

_libc = ctypes.CDLL(None, use_errno=True)
_ABSOLUTE = 1


class _Times(ctypes.Structure):
    """struct itimerspec: the interval, and the time of the first expiration."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Timer:
    """Waits for a time of the monotonic clock by a timerfd: gevent's own timers are late by up to a millisecond."""

    def __init__(self) -> None:
        self._descriptor = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._times = _Times()
        self._watcher = gevent.get_hub().loop.io(self._descriptor, 1)

    def wait_until(self, when: float) -> None:
        """Returns at `when`, seconds of time.monotonic; at once if it has passed."""
        if when <= time.monotonic():
            return
        self._times.value_s, self._times.value_ns = int(when), max(1, int(when % 1 * 1e9))
        _libc.timerfd_settime(self._descriptor, _ABSOLUTE, ctypes.byref(self._times), None)
        gevent.get_hub().wait(self._watcher)

    def wake(self) -> None:
        """Ends a wait now."""
        self._times.value_s, self._times.value_ns = 0, 1
        _libc.timerfd_settime(self._descriptor, _ABSOLUTE, ctypes.byref(self._times), None)

    def close(self) -> None:
        """Frees the timer."""
        self._watcher.close()
        os.close(self._descriptor)


@dataclass(eq=False, slots=True)
class Turn:
    """A request that a user sends now. Times are those of time.monotonic."""

    phase: RunningPhase
    due: float
    #: How many requests this process has begun in the run before this one.
    number: int


class RunningPhase:
    """A phase in one process, and its counts since they were last taken."""

    def __init__(
        self, number: int, begin: float, seconds: float, *, arrivals: Arrivals | None = None, users: int = 0
    ) -> None:
        self.number, self.begin, self.end = number, begin, begin + seconds
        self.arrivals, self.users = arrivals, users
        self.under_way: set[Turn] = set()
        #: Users that wait until their next request is due, and when that is.
        self.waiting: dict[Timer, float] = {}
        self.is_closed = False
        self._next = self._compute_next()
        self._seconds: dict[int, SecondCounts] = {}

    def take_due(self) -> float | None:
        """Returns when the next request of an open loop is due, None when there is none."""
        due = self._next
        if due is not None:
            self._next = self._compute_next()
        return due

    def second(self, when: float) -> SecondCounts:
        """Returns the counts of the second in which `when` lies."""
        return self._counts(max(0, int(when - self.begin)))

    def count_answer(self, now: float) -> None:
        """Counts a good answer in its second; one that came after the end in a second behind those of the phase."""
        second = max(0, int(now - self.begin))
        if now > self.end:
            second = max(second, math.ceil(self.end - self.begin))
        self._counts(second).answered += 1

    def is_idle(self) -> bool:
        """Returns whether everything that was due has been sent and answered."""
        return not self.under_way and not self.waiting and (self._next is None or self._next >= self.end)

    def close(self, now: float) -> None:
        """Counts what has no answer as unanswered, with the time that it has waited; later answers are ignored."""
        self.is_closed = True
        dues = [turn.due for turn in self.under_way]
        dues += [due for due in self.waiting.values() if due < min(now, self.end)]
        for timer in self.waiting:
            timer.wake()
        if self.arrivals is not None:
            while (due := self.take_due()) is not None and due < min(now, self.end):
                dues.append(due)
        for due in dues:
            counts = self.second(due)
            counts.unanswered += 1
            counts.latency.add((now - due) * 1000)

    def take_counts(self) -> dict[int, SecondCounts]:
        """Returns what was counted since the last call, by second."""
        found, self._seconds = self._seconds, {}
        return found

    def _counts(self, second: int) -> SecondCounts:
        found = self._seconds.get(second)
        if found is None:
            found = self._seconds[second] = SecondCounts()
        return found

    def _compute_next(self) -> float | None:
        due = None if self.arrivals is None else self.arrivals.next()
        return None if due is None else self.begin + due


class Pace:
    """Gives turns to the users of this process. One phase runs at a time; between phases users wait."""

    def __init__(self, index: int = 0, processes: int = 1) -> None:
        self._index, self._processes = index, processes
        self._phase: RunningPhase | None = None
        self._changed = gevent.event.Event()
        self._begun = 0

    @property
    def phase(self) -> RunningPhase | None:
        """The phase that runs."""
        return self._phase

    def begin(self, content: dict[str, Any]) -> RunningPhase:
        """Begins a phase: number, begin (time.monotonic), seconds, and either rate (two of them) or users; seed."""
        seconds, rate = float(content["seconds"]), content.get("rate")
        arrivals = None
        if rate is not None:
            seed = content.get("seed")
            gaps = None if seed is None else random.Random(f"{seed}-{content['number']}-{self._index}")
            arrivals = Arrivals(rate[0], rate[1], seconds, index=self._index, processes=self._processes, gaps=gaps)
        # Users are divided among the processes; the first ones have one more where it does not divide.
        users = (int(content.get("users", 0)) + self._processes - 1 - self._index) // self._processes
        self._phase = RunningPhase(content["number"], content["begin"], seconds, arrivals=arrivals, users=users)
        self._changed.set()
        self._changed = gevent.event.Event()
        return self._phase

    def finish(self, phase: RunningPhase) -> None:
        """Ends a phase: its users wait for the next one."""
        phase.close(time.monotonic())
        if self._phase is phase:
            self._phase = None

    def take(self, user: int, timer: Timer) -> Turn:
        """Returns when this user is to send its next request. user: its number in this process."""
        while True:
            phase = self._phase
            due = None if phase is None else self._due(phase, user, timer)
            if phase is None or due is None:
                self._changed.wait()
            elif not phase.is_closed and phase is self._phase:
                turn = Turn(phase, due, self._begun)
                self._begun += 1
                phase.under_way.add(turn)
                return turn

    def _due(self, phase: RunningPhase, user: int, timer: Timer) -> float | None:
        free = time.monotonic()
        if phase.arrivals is None:
            if user >= phase.users or free >= phase.end:
                return None
            timer.wait_until(phase.begin)
            return max(free, phase.begin)
        due = phase.take_due()
        if due is None or due >= phase.end:
            return None
        if due <= free:
            phase.second(due).waited += 1
            return due
        phase.waiting[timer] = due
        timer.wait_until(due)
        del phase.waiting[timer]
        if phase.is_closed or due >= phase.end:
            return None
        phase.second(due).lag.add((time.monotonic() - due) * 1000)
        return due

    def record(self, turn: Turn, error: str | None) -> float:
        """Counts a request whose answer is complete now; returns its latency in milliseconds."""
        now = time.monotonic()
        latency = (now - turn.due) * 1000
        phase = turn.phase
        phase.under_way.discard(turn)
        if phase.is_closed:
            return latency
        counts = phase.second(turn.due)
        if error is not None:
            counts.failed += 1
            counts.add_error(error)
        else:
            counts.latency.add(latency)
            phase.count_answer(now)
        return latency
