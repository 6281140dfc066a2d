"""Summarises when the events happened that a snapshot was trained on, and how old they are when it is served.

A summary has the number of events and at most a hundred of their times, each for as many events as every other one.
Up to a hundred events it is exact.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from storage.checkpoint.signed import Part

#: Upper bounds of the buckets of ages, in seconds.
AGE_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0, 604800.0)
_QUANTILES = 100
# Times before 1980 and from 2100 on are no times of events: the column counts from something else.
_EARLIEST_MS, _LATEST_MS = 315_532_800_000, 4_102_444_800_000


class EventTimes(Part):
    """Times of events, by the column that the trainer was told (`training.time_column`)."""

    rows: int = Field(ge=1, lt=2**48, description="rows whose time is known")
    oldest_unix_ms: int = Field(ge=0, lt=2**50, description="milliseconds since 1970")
    newest_unix_ms: int = Field(ge=0, lt=2**50)
    quantiles_unix_ms: tuple[int, ...] = Field(
        min_length=1, max_length=_QUANTILES, description="times, ascending, each that of an equal part of the rows"
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        times = [self.oldest_unix_ms, *self.quantiles_unix_ms, self.newest_unix_ms]
        if times != sorted(times):
            raise ValueError("quantiles_unix_ms: expected ascending times from the oldest to the newest")
        return self

    @classmethod
    def of(cls, times_ms: np.ndarray[Any, Any]) -> Self | None:
        """Summarises times, (N,) int64; None without one. Times outside of 1980 to 2099 are left out."""
        times = np.sort(times_ms[(times_ms >= _EARLIEST_MS) & (times_ms < _LATEST_MS)])
        return cls._chosen(times, np.ones(len(times))) if len(times) else None

    @classmethod
    def _chosen(cls, times: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> Self:
        """Summarises ascending times that stand for so many rows each."""
        until = np.cumsum(rows)
        total = round(until[-1])
        count = min(total, _QUANTILES)
        places = np.searchsorted(until, (np.arange(count) + 0.5) * (until[-1] / count))
        return cls(
            rows=total,
            oldest_unix_ms=int(times[0]),
            newest_unix_ms=int(times[-1]),
            quantiles_unix_ms=tuple(times[places].tolist()),
        )

    def until(self, time_ms: float) -> float:
        """Returns the number of events until a time, that included."""
        return self.rows * bisect_right(self.quantiles_unix_ms, time_ms) / len(self.quantiles_unix_ms)

    def joined(self, other: EventTimes) -> EventTimes:
        """Returns the summary of both."""
        times = np.array([*self.quantiles_unix_ms, *other.quantiles_unix_ms], np.int64)
        rows = np.repeat(
            [each.rows / len(each.quantiles_unix_ms) for each in (self, other)],
            [len(self.quantiles_unix_ms), len(other.quantiles_unix_ms)],
        )
        order = np.argsort(times, kind="stable")
        return self._chosen(times[order], rows[order]).model_copy(
            update={
                "oldest_unix_ms": min(self.oldest_unix_ms, other.oldest_unix_ms),
                "newest_unix_ms": max(self.newest_unix_ms, other.newest_unix_ms),
            }
        )


@dataclass(frozen=True)
class EventAges:
    """A histogram of the ages that events had when something was done with them."""

    #: Events by age, of at most each bound of AGE_BOUNDS_S and above the one before; the last are older than all.
    counts: tuple[float, ...] = (0.0,) * (len(AGE_BOUNDS_S) + 1)
    #: Of all ages, in seconds.
    sum_s: float = 0.0

    @property
    def rows(self) -> float:
        """The number of events."""
        return sum(self.counts)

    def with_events(self, events: EventTimes, now_ms: float, after_ms: float = -1.0) -> EventAges:
        """Returns the histogram with those of the events that came later than `after_ms`, at their age now.

        An event from the future, by a clock that is ahead, has the age 0.
        """
        before = events.until(after_ms)
        # Events until the time that has the age of each bound; the last bucket has no bound.
        older = [max(before, events.until(now_ms - 1000.0 * bound - 0.5)) for bound in AGE_BOUNDS_S]
        ends = [events.rows, *older, before]
        counts = (own + newer - older for own, newer, older in zip(self.counts, ends, ends[1:], strict=False))
        ages = [max(0.0, now_ms - time) for time in events.quantiles_unix_ms if time > after_ms]
        sum_s = sum(ages) / 1000.0 * events.rows / len(events.quantiles_unix_ms)
        return EventAges(tuple(counts), self.sum_s + sum_s)

    def buckets(self) -> list[tuple[str, int]]:
        """Returns the bounds as text, "+Inf" last, each with the whole number of events up to it."""
        totals = accumulate(self.counts)
        return [(bound, round(total)) for bound, total in zip((*map(str, AGE_BOUNDS_S), "+Inf"), totals, strict=True)]

    def quantile(self, share: float) -> float | None:
        """Returns the age in seconds that this share of the events does not exceed; None without events.

        It is exact to a bucket. Ages above the last bound are given as that.
        """
        left, low = share * self.rows, 0.0
        if self.rows <= 0.0:
            return None
        for bound, count in zip(AGE_BOUNDS_S, self.counts, strict=False):
            if left <= count and count > 0.0:
                return low + (bound - low) * left / count
            left, low = left - count, bound
        return low
