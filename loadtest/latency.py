"""Measures exact latencies of a run. locust's own statistics round to whole milliseconds, which hides a fast server."""

from __future__ import annotations

import math
import time
from array import array

MOST = 5_000_000


class Latencies:
    """Milliseconds of every answered request since `clear`; at most MOST of them, the rest is only counted."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets all requests."""
        self._milliseconds = array("d")
        self._failed = 0
        self._answered = 0
        self._began = time.perf_counter()
        self._ended = self._began

    def add(self, milliseconds: float, *, failed: bool) -> None:
        """Counts one request."""
        self._ended = time.perf_counter()
        if failed:
            self._failed += 1
            return
        self._answered += 1
        if len(self._milliseconds) < MOST:
            self._milliseconds.append(milliseconds)

    def figures(self) -> dict[str, float]:
        """Returns requests, failures, requests_per_second, and p50, p90, p99 and the largest in milliseconds."""
        ordered = sorted(self._milliseconds)
        seconds = self._ended - self._began

        def quantile(share: float) -> float:
            return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan

        return {
            "requests": self._answered + self._failed,
            "failures": self._failed,
            "requests_per_second": self._answered / seconds if seconds > 0 else 0.0,
            "p50_ms": quantile(0.50),
            "p90_ms": quantile(0.90),
            "p99_ms": quantile(0.99),
            "max_ms": ordered[-1] if ordered else math.nan,
        }
