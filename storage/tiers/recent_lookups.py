"""Counts what recent lookups found, for forecasts and for the division of a budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from storage.tiers.counting import COUNTED, LookupTotals

# Columns of RecentLookups.counts that are rows: DRAM, SSD.
_FOUND = 2
# A window with fewer rows than this does not show how much traffic varies.
_LEAST_FOUND = 1000
_WINDOWS = 12


class RecentLookups:
    """Counts what recent lookups of the base found: every `fade` halves what was counted before it.

    total: returns the counts of all lookups until now. The attribute `windows` has the hit rates between two fades, of
    the last such periods in which enough was looked up.
    """

    def __init__(self, total: Callable[[], LookupTotals]) -> None:
        self._total = total
        self._faded = np.zeros(0)
        self._before = np.zeros(0)
        self.windows: deque[float] = deque(maxlen=_WINDOWS)

    def fade(self) -> None:
        """Ends the present period: notes its hit rate and halves what was counted."""
        now = self._counted()
        window = now - self._before if len(self._before) else now
        found = window[:, :_FOUND].sum()
        if found >= _LEAST_FOUND:
            self.windows.append(float(window[:, 0].sum() / found))
        self._faded = self.counts() / 2
        self._before = now

    def restart(self) -> None:
        """Forgets what was counted, because another budget has other hits."""
        self._before = self._counted()
        self._faded = np.zeros_like(self._before)
        self.windows.clear()

    def counts(self) -> np.ndarray:
        """Returns (T, 4), ids by where they were found: DRAM, SSD, absent, unresolved. The most recent count most."""
        now = self._counted()
        return now if len(self._before) == 0 else now - self._before + self._faded

    def by_table(self) -> list[float]:
        """Returns the ids that were looked up in the base, by table. The most recent count most."""
        return [float(count) for count in self.counts().sum(1)]

    def _counted(self) -> np.ndarray:
        by_table = self._total().by_table
        base = [COUNTED.index(name) for name in ("dram", "ssd", "absent", "unresolved")]
        return np.asarray(by_table[:, base], np.float64)
