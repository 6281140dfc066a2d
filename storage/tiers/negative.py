"""Remembers a bounded number of ids that are in no tier, so that they cost no read."""

from __future__ import annotations

import numpy as np

from storage._table import Table


class NegativeCache:
    """A bounded set of absent ids of one table. Readers take no lock; the coldest ids are forgotten first."""

    def __init__(self, capacity: int) -> None:
        # The native table is a set of ids with eviction; its row, one float, is not used.
        self._table = Table(1, capacity_rows=capacity)

    def contains(self, ids: np.ndarray) -> np.ndarray:
        """Returns (n,) bool, True for each of ids (n,) int64 that is remembered."""
        found = np.zeros(len(ids), np.uint8)
        if len(ids):
            self._table.find(ids, np.empty((len(ids), 1), np.float32), found)
        return found.view(np.bool_)

    def add(self, ids: np.ndarray) -> None:
        """Remembers ids (n,) int64."""
        if len(ids):
            self._table.insert_and_evict(ids, np.zeros((len(ids), 1), np.float32))

    def size(self) -> int:
        """Returns how many ids are remembered."""
        return int(self._table.size())

    def forget(self, ids: np.ndarray) -> None:
        """Forgets ids (n,) int64 that are not absent any more."""
        if len(ids):
            self._table.erase(ids)
