"""Computes when the requests of an open loop are due."""

from __future__ import annotations

import math
import random


class Arrivals:
    """The times at which one of several processes sends requests, in seconds from the begin of a phase.

    The rate changes evenly from `begin` to `end` requests a second over all processes. With `gaps` the intervals are
    those of a Poisson process, as of many users who do not know of each other; without, they are equal.
    """

    def __init__(
        self,
        begin: float,
        end: float,
        seconds: float,
        *,
        index: int = 0,
        processes: int = 1,
        gaps: random.Random | None = None,
    ) -> None:
        self._begin, self._seconds = begin, seconds
        self._slope = (end - begin) / seconds
        self._processes, self._gaps = processes, gaps
        # How many requests of all processes are due before the next one of this process.
        self._count = index + 0.5 if gaps is None else gaps.expovariate(1.0) * processes

    def next(self) -> float | None:
        """Returns the next time, None when the phase has no more."""
        # The number due by t is begin t + slope t^2 / 2; this is its inverse, in a form that also holds for slope 0.
        under_root = self._begin**2 + 2 * self._slope * self._count
        if under_root < 0:
            return None
        due = 2 * self._count / (self._begin + math.sqrt(under_root))
        if due >= self._seconds:
            return None
        self._count += self._processes if self._gaps is None else self._gaps.expovariate(1.0) * self._processes
        return due
