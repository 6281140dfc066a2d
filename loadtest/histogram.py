"""Counts latencies in buckets of equal relative width, so that hours of them take little memory and merge exactly.

locust's own statistics round to whole milliseconds, which hides a fast server.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

# Buckets for a factor of e: each is 0.5% wide, and what is reported is its middle.
_BUCKETS = 200
#: Milliseconds below which latencies are not told apart.
SHORTEST_MS = 1e-3


class Histogram:
    """Latencies in milliseconds, to 0.25%; the largest is exact."""

    __slots__ = ("counts", "largest", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.largest = 0.0
        self.total = 0

    def add(self, milliseconds: float, count: int = 1) -> None:
        """Counts a latency, `count` times."""
        bucket = math.floor(math.log(max(milliseconds, SHORTEST_MS)) * _BUCKETS)
        self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.total += count
        if milliseconds > self.largest:
            self.largest = milliseconds

    def merge(self, other: Histogram) -> None:
        """Adds what another one counted."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    def quantile(self, share: float) -> float:
        """Returns the latency that this share of the requests did not exceed; not a number without requests."""
        if not self.total:
            return math.nan
        left = max(1, math.ceil(share * self.total))
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                return min(math.exp((bucket + 0.5) / _BUCKETS), self.largest)
        return self.largest

    def over(self, milliseconds: float) -> int:
        """Returns how many latencies were longer, to the width of a bucket."""
        bound = math.floor(math.log(max(milliseconds, SHORTEST_MS)) * _BUCKETS)
        return sum(count for bucket, count in self.counts.items() if bucket > bound)

    def to_json_value(self) -> dict[str, Any]:
        """Returns what `from_json_value` reads."""
        return {"counts": sorted(self.counts.items()), "largest": self.largest}

    @classmethod
    def from_json_value(cls, content: Mapping[str, Any]) -> Histogram:
        """Returns the histogram that `to_json_value` described."""
        found = cls()
        found.counts = {int(bucket): int(count) for bucket, count in content["counts"]}
        found.largest = float(content["largest"])
        found.total = sum(found.counts.values())
        return found


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """Returns one histogram with everything that these counted."""
    whole = Histogram()
    for each in histograms:
        whole.merge(each)
    return whole
