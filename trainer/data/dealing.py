"""Deals the blocks of a data set out to ranks that read them for each other, by how fast each one reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Dealer:
    """Deals alike at all ranks, because each gets the same times. R ranks."""

    def __init__(self, ranks: int) -> None:
        #: Seconds that each rank takes for a row, (R,).
        self.paces = np.ones(ranks)
        self._has_paces = False
        self._rows = np.zeros(ranks)  # that each has been dealt

    def deal(self, blocks: Sequence[int]) -> list[int]:
        """Returns the rank that reads each block, so that all are read soonest. blocks: their rows."""
        ends, found = np.zeros_like(self.paces), [0] * len(blocks)
        for place in sorted(range(len(blocks)), key=lambda each: -blocks[each]):
            later = ends + blocks[place] * self.paces
            rank = min(range(len(ends)), key=lambda each: (later[each], self._rows[each]))
            ends[rank] = later[rank]
            self._rows[rank] += blocks[place]
            found[place] = rank
        return found

    def measured(self, rows: Sequence[int], seconds: Sequence[float]) -> None:
        """Takes the rows that each rank has just read, and for how long, (R,)."""
        read = np.array(rows) > 0
        if not read.any():
            return
        found = np.maximum(1e-9, np.array(seconds)[read] / np.array(rows)[read])
        if not self._has_paces:
            self._has_paces = True
            self.paces[:] = np.median(found)
            self.paces[read] = found
            return
        # A rank that was too slow to be dealt anything is tried again some time.
        now = np.full_like(self.paces, np.median(found))
        now[read] = found
        self.paces = (self.paces + now) / 2
