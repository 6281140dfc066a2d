"""Deals the blocks of a data set out to ranks that read them for each other, by how fast each one reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Ranks whose times differ from the median by less than this factor are dealt alike: a busy machine varies so much.
_ALIKE = 1.5
#: The weight of the last times beside those before.
_NEW = 0.25


class Dealer:
    """Deals alike at all ranks, because each gets the same times. R ranks."""

    def __init__(self, ranks: int) -> None:
        self._paces = np.ones(ranks)  # seconds for a row
        self._has_paces = False
        self._rows = np.zeros(ranks)  # that each has been dealt
        self._dealt = self._rows  # those of the present round among them

    def deal(self, blocks: Sequence[int]) -> list[int]:
        """Returns the rank that reads each block, so that all are read soonest. blocks: their rows."""
        paces = self._settled_paces()
        ends, found = np.zeros_like(paces), [0] * len(blocks)
        # Counted when all have read: a round that ends before may have been dealt at some ranks and not at others.
        dealt = self._dealt = self._rows.copy()
        for place in sorted(range(len(blocks)), key=lambda each: -blocks[each]):
            later = ends + blocks[place] * paces
            rank = min(range(len(ends)), key=lambda each: (later[each], dealt[each]))
            ends[rank] = later[rank]
            dealt[rank] += blocks[place]
            found[place] = rank
        return found

    def measured(self, rows: Sequence[int], seconds: Sequence[float]) -> None:
        """Takes the rows that each rank has just read, and for how long, (R,)."""
        self._rows = self._dealt
        read = np.array(rows) > 0
        if not read.any():
            return
        found = np.maximum(1e-9, np.array(seconds)[read] / np.array(rows)[read])
        # A rank that was too slow to be dealt anything is tried again some time.
        now = np.full_like(self._paces, np.median(found))
        now[read] = found
        self._paces = (1 - _NEW) * self._paces + _NEW * now if self._has_paces else now
        self._has_paces = True

    def _settled_paces(self) -> NDArray[np.float64]:
        median = np.median(self._paces)
        alike = (self._paces < _ALIKE * median) & (self._paces > median / _ALIKE)
        return np.where(alike, median, self._paces)
