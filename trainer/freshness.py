"""Counts how old the events of a stream are when training has used, committed and published them."""

from __future__ import annotations

import time
from typing import Any, Literal

import numpy as np

from storage.checkpoint.event_times import EventAges
from trainer.event_times import TrainedTimes

At = Literal["trained", "committed", "published"]
STAGES: tuple[At, ...] = ("trained", "committed", "published")


class Freshness:
    """Ages of the events by stage, since this call of the trainer began. Other threads may read its two mappings."""

    def __init__(self) -> None:
        self.ages = dict.fromkeys(STAGES, EventAges())
        #: Time of the newest event, in milliseconds since 1970; 0 before the first.
        self.newest_unix_ms = dict.fromkeys(STAGES, 0)
        self._ahead = {at: TrainedTimes() for at in STAGES}

    def add(self, times_ms: np.ndarray[Any, Any] | None) -> None:
        """Takes the times of rows that were trained on, (N,) int64 in milliseconds; None: not known."""
        for times in self._ahead.values():
            times.add(times_ms)

    def reached(self, at: At) -> None:
        """Says that a stage has all events up to now."""
        events = self._ahead[at].since_snapshot()
        if events is None:
            return
        self._ahead[at] = TrainedTimes()
        self.ages[at] = self.ages[at].with_events(events, time.time() * 1000.0)
        self.newest_unix_ms[at] = max(self.newest_unix_ms[at], events.newest_unix_ms)

    def seconds(self) -> dict[str, dict[str, float]]:
        """Returns, by stage, how many events reached it, and the quantiles p50 and p99 of their ages in seconds."""
        found: dict[str, dict[str, float]] = {}
        for at, ages in self.ages.items():
            p50, p99 = ages.quantile(0.5), ages.quantile(0.99)
            if p50 is not None and p99 is not None:
                found[at] = {"events": round(ages.rows), "p50": round(p50, 3), "p99": round(p99, 3)}
        return found
