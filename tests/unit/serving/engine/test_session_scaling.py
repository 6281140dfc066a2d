"""The number of sessions follows a load that is simulated request by request, and comes to rest."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from serving.engine.session_scaling import LOOK_S, SessionScaling, Work

_MS = 1_000_000
# How long a batch takes with so many sessions, in nanoseconds.
BatchNs = Callable[[int], int]


def _alike(sessions: int) -> int:
    return 10 * _MS


def _used_up(sessions: int) -> int:
    """More sessions score nothing more, as when one core is all there is."""
    return 10 * _MS * sessions


class Queue:
    """One queue before several sessions, a request a batch."""

    def __init__(self, batch_ns: BatchNs, least: int = 1, most: int = 16, seed: int = 1) -> None:
        self.scaling = SessionScaling(least, most)
        self.sessions = least
        self.history: list[int] = []
        self._batch_ns = batch_ns
        self._random = random.Random(seed)
        self._now = self._next = 0
        self._free = [0] * least  # when each session is done
        self._waiting: list[int] = []
        self._ended: list[tuple[int, int, int]] = []
        self._sums = [0, 0, 0]

    def run(self, seconds: float, requests_a_s: float, most_waiting: int = 200) -> list[int]:
        """Sends requests at random times, and returns the number of sessions after each look."""
        begun = len(self.history)
        for _ in range(round(seconds / LOOK_S)):
            self._until(self._now + round(LOOK_S * 1e9), requests_a_s, most_waiting)
            count, waited, busy = self._sums
            work = Work(self._now, count, waited, count, count, busy, len(self._waiting))
            wanted = self.scaling.look(work, self.sessions)
            if wanted != self.sessions:
                self._free = (sorted(self._free) + [self._now] * wanted)[:wanted]
                heapq.heapify(self._free)
                self.sessions = wanted
            self.history.append(self.sessions)
        return self.history[begun:]

    def _until(self, end: int, requests_a_s: float, most_waiting: int) -> None:
        while requests_a_s and self._next < end:
            if len(self._waiting) < most_waiting:
                self._waiting.append(self._next)
            self._next += max(1, round(self._random.expovariate(requests_a_s) * 1e9))
            self._take(min(self._next, end))
        self._take(end)
        self._now, self._next = end, max(self._next, end)
        done = [each for each in self._ended if each[0] <= end]
        self._ended = [each for each in self._ended if each[0] > end]
        for _, waited, busy in done:
            self._sums = [self._sums[0] + 1, self._sums[1] + waited, self._sums[2] + busy]

    def _take(self, now: int) -> None:
        while self._waiting and self._free[0] <= now:
            arrived, free = self._waiting.pop(0), self._free[0]
            begin, took = max(arrived, free), self._batch_ns(self.sessions)
            heapq.heapreplace(self._free, begin + took)
            self._ended.append((begin + took, begin - arrived, took))


@pytest.mark.parametrize("requests_a_s", [20, 150, 330, 700])
def test_sessions_follow_the_load_and_come_to_rest(requests_a_s: int) -> None:
    queue = Queue(_alike)
    queue.run(60, requests_a_s)
    later = queue.run(600, requests_a_s)
    # One change at most in ten minutes: random requests come close together now and then.
    assert sum(one != next_one for one, next_one in pairwise(later)) <= 1
    # As many as keep up.
    assert min(later) >= requests_a_s / 100
    # Not more than keep sessions half busy, but for a step.
    assert later[-1] <= max(1, requests_a_s / 100 / 0.5 + 1)
    assert queue.scaling.changes["back"] == 0


def test_a_peak_is_followed_up_at_once_and_down_slowly() -> None:
    queue = Queue(_alike, least=2)
    assert set(queue.run(30, 50)) == {2}
    up = queue.run(30, 800)
    assert up[-1] >= 8
    # Twice as many each time while requests pile up.
    assert min(i for i, count in enumerate(up) if count >= 8) * LOOK_S <= 15
    down = queue.run(60, 50)
    assert down[-1] == 2
    assert down[round(8 / LOOK_S)] == up[-1]  # a dip of some seconds takes none away
    assert queue.scaling.last is not None
    assert queue.scaling.last.direction == "down"


def test_sessions_that_do_not_help_end_and_are_tried_ever_more_seldom() -> None:
    queue = Queue(_used_up)
    queue.run(3600, 200)
    assert queue.sessions == 1
    changes = queue.scaling.changes
    assert changes["up"] == changes["back"]
    # Tries are 30 s apart at first, then twice as long, and at most ten minutes.
    assert 6 <= changes["up"] <= 11
    assert queue.scaling.last is not None
    assert "scored" in queue.scaling.last.reason


def test_the_number_stays_within_its_bounds() -> None:
    queue = Queue(_alike, least=2, most=5)
    assert max(queue.run(120, 2000)) == 5
    assert set(queue.run(120, 2000)) == {5}
    assert queue.run(120, 0)[-1] == 2
    assert min(queue.history) == 2


def test_after_a_number_from_elsewhere_it_begins_anew() -> None:
    queue = Queue(_alike)
    queue.run(30, 150)
    queue.sessions = 7
    queue._free = [queue._now] * 7
    seen = queue.run(9, 150)
    assert set(seen) == {7}
    assert queue.run(30, 150)[-1] in (3, 4)


def test_no_more_are_asked_for_for_ten_minutes_after_they_could_not_be_started() -> None:
    queue = Queue(_alike, most=4)
    while queue.sessions == 1:
        queue.run(LOOK_S, 300)
    queue.scaling.failed(1, RuntimeError("no memory left on cuda:0"))
    queue.sessions, queue._free = 1, [queue._now]
    assert set(queue.run(590, 300)) == {1}
    assert queue.run(60, 300)[-1] > 1
