"""Decides how many sessions a version has while its load changes: by how long requests wait for one.

One more is started when requests wait longer than a batch takes, and the sessions are busy. It stays if it helped: more
rows a second are scored, or requests wait less. A session that brings neither (the cores, the interpreter or the bus
are used up) ends again, and the next try comes later each time. Sessions end when fewer would have done for a while.

A number that was just left is not returned to under the same load: it is left upwards when its sessions are busy for
more than BUSY of the time, and taken again only when they would be for less than IDLE.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

# Seconds between two looks.
LOOK_S = 0.5
# The share of the time that sessions work: above the first there may be too few, below the second fewer will do.
BUSY, IDLE = 0.6, 0.5
# Sessions that work for this share of the time and keep requests waiting for _FAR batches are doubled.
_ALWAYS, _FAR = 0.95, 4
# Looks in a row until a session is added, until the result is judged, and until sessions are taken away.
_UP, _TRIAL, _DOWN = 2, 4, 20
# What more sessions must bring: rows a second, or the wait of a request.
_MORE_ROWS, _LESS_WAIT = 1.05, 0.8
# Looks until the next try after sessions that did not help: at first, and at most.
_FIRST_HOLD, _MOST_HOLD = 60, 1200

Direction = Literal["up", "down", "back"]


class Work(NamedTuple):
    """Counts what the sessions of a version have done until now. Times are in nanoseconds."""

    at_ns: int
    #: Requests that were taken from the queue, and their waits for it.
    requests: int
    waited_ns: int
    rows: int
    batches: int
    busy_ns: int
    #: Requests that wait now.
    queued: int


@dataclass(frozen=True)
class Rate:
    """Says what the sessions did between two looks."""

    rows_a_s: float
    #: Mean of a request, and of a batch.
    wait_ns: float
    batch_ns: float
    #: Sessions that were at work, on average.
    busy: float


@dataclass(frozen=True)
class Change:
    """A change of the number of sessions."""

    direction: Direction
    before: int
    after: int
    #: In words, with figures.
    reason: str
    unix_ms: int


@dataclass(frozen=True)
class _Trial:
    """Sessions that were added, and must show that they help."""

    before: int
    rate: Rate


class SessionScaling:
    """Follows the load of one version. Not thread-safe: one thread looks."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most
        #: The last change; None before the first.
        self.last: Change | None = None
        self.changes: dict[Direction, int] = {"up": 0, "down": 0, "back": 0}
        self._sessions = 0
        self._work: Work | None = None
        self._rates: deque[Rate] = deque(maxlen=_TRIAL)
        self._needed: deque[int] = deque(maxlen=_DOWN)
        self._trial: _Trial | None = None
        self._looks = 0
        self._hold, self._hold_until = _FIRST_HOLD, 0

    def look(self, work: Work, sessions: int) -> int:
        """Returns how many sessions there should be now.

        work: everything until now. sessions: how many there are; another number than it asked for begins anew.
        """
        if sessions != self._sessions:
            self._begin(sessions)
        self._looks += 1
        if (before := self._work) is None:
            self._work = work
            return sessions
        if work.batches == before.batches and work.queued:
            return sessions  # a batch takes longer than a look; its times are known when it ends
        self._work = work
        rate = _rate(before, work)
        self._rates.append(rate)
        self._needed.append(math.ceil(rate.busy / IDLE))
        if self._trial is not None:
            return self._judge(self._trial)
        if sessions < self.most and self._looks >= self._hold_until and self._wants_more(sessions):
            return self._add(sessions)
        fewer = max(self.least, *self._needed) if len(self._needed) == _DOWN else sessions
        if fewer < sessions:
            reason = f"{fewer} would have been busy for less than {IDLE:.0%} of the last {_DOWN * LOOK_S:.0f} s"
            return self._change("down", fewer, reason)
        return sessions

    def failed(self, sessions: int, error: Exception) -> None:
        """Notes that sessions could not be started, so that it is long until the next try. sessions: there are now."""
        self._change("back", sessions, str(error))
        self._hold_until = self._looks + _MOST_HOLD

    def _begin(self, sessions: int) -> None:
        self._sessions = sessions
        self._work = self._trial = None
        self._rates.clear()
        self._needed.clear()

    def _wants_more(self, sessions: int) -> bool:
        last = list(self._rates)[-_UP:]
        return len(last) == _UP and all(rate.busy > BUSY * sessions and rate.wait_ns > rate.batch_ns for rate in last)

    def _add(self, sessions: int) -> int:
        rate = _mean(list(self._rates)[-_UP:])
        is_far = rate.busy > _ALWAYS * sessions and rate.wait_ns > _FAR * rate.batch_ns
        after = min(self.most, 2 * sessions if is_far else sessions + 1)
        reason = f"requests waited {_ms(rate.wait_ns)} for batches of {_ms(rate.batch_ns)}"
        self._change("up", after, reason)
        self._trial = _Trial(sessions, rate)
        return after

    def _judge(self, trial: _Trial) -> int:
        if len(self._rates) < _TRIAL:
            return self._sessions
        # The new sessions had to begin, and what waited had to be worked off: the first look says little.
        rate = _mean(list(self._rates)[1:])
        self._trial = None
        if rate.rows_a_s >= _MORE_ROWS * trial.rate.rows_a_s or rate.wait_ns <= _LESS_WAIT * trial.rate.wait_ns:
            self._hold = _FIRST_HOLD
            return self._sessions
        self._hold_until = self._looks + self._hold
        self._hold = min(_MOST_HOLD, 2 * self._hold)
        reason = (
            f"{self._sessions} scored {rate.rows_a_s:,.0f} rows/s, {trial.before} had scored "
            f"{trial.rate.rows_a_s:,.0f}; requests waited {_ms(rate.wait_ns)}, and {_ms(trial.rate.wait_ns)} before"
        )
        return self._change("back", trial.before, reason)

    def _change(self, direction: Direction, after: int, reason: str) -> int:
        self.last = Change(direction, self._sessions, after, reason, time.time_ns() // 1_000_000)
        self.changes[direction] += 1
        self._begin(after)
        return after


def _rate(before: Work, now: Work) -> Rate:
    elapsed = max(1, now.at_ns - before.at_ns)
    requests, batches = now.requests - before.requests, now.batches - before.batches
    return Rate(
        1e9 * (now.rows - before.rows) / elapsed,
        (now.waited_ns - before.waited_ns) / max(1, requests),
        (now.busy_ns - before.busy_ns) / max(1, batches),
        (now.busy_ns - before.busy_ns) / elapsed,
    )


def _mean(rates: Sequence[Rate]) -> Rate:
    count = len(rates)
    return Rate(
        sum(rate.rows_a_s for rate in rates) / count,
        sum(rate.wait_ns for rate in rates) / count,
        sum(rate.batch_ns for rate in rates) / count,
        sum(rate.busy for rate in rates) / count,
    )


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3g} ms"
