"""Reads rows that DRAM does not have from SSD, for many tables in one call on the request's own thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from storage._pages import ABSENT, FOUND
from storage.errors import StoreError
from storage.tiers.dram_cache import DramCache
from storage.tiers.overlays import Overlays, OverlayView
from storage.tiers.promoter import Promoter, Promotion
from storage.tiers.ssd.reads import RowRead
from storage.tiers.ssd.tier import SsdTier


class ColdReads:
    """Reads rows of one store from SSD. Thread-safe.

    numbers: a table's number on SSD, by its index. cache: returns the store's present DRAM cache, which the first
    budget replaces.
    """

    def __init__(
        self,
        ssd: SsdTier,
        numbers: Sequence[int],
        overlays: Overlays,
        cache: Callable[[], DramCache],
        promoter: Promoter,
    ) -> None:
        self._ssd = ssd
        self._numbers = numbers
        self._tables = {number: table for table, number in enumerate(numbers)}
        self._overlays = overlays
        self._cache = cache
        self._promoter = promoter

    def number(self, table: int) -> int:
        """Returns the number on SSD of the base's rows of a table."""
        return self._numbers[table]

    def read(self, wanted: Sequence[RowRead], view: OverlayView | None, timeout_s: float | None) -> None:
        """Answers reads of the base's tables, and of those that overlays of a view spilled to SSD. Raises StoreError.

        view: the overlays when the lookup began; None when it shows none. A row that does not come within timeout_s
        (None: no limit) stays UNRESOLVED. Rows found in the base are offered to DRAM; ids absent there are remembered.
        """
        if not wanted:
            return
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        generation = self._cache().generation
        self._ssd.reader.read(wanted, timeout_s)
        again: list[RowRead] = []
        for one in wanted:
            if one.table in self._tables:
                self._offer(generation, one)
            elif view is not None:
                again.extend(self._merged_meanwhile(one, view))
        if again:
            self.read(again, None, None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _offer(self, generation: int, one: RowRead) -> None:
        where = one.positions()
        states = one.states[where]
        hits, absent = where[states == FOUND], where[states == ABSENT]
        if len(hits) or len(absent):
            table = self._tables[one.table]
            self._promoter.offer(Promotion(generation, table, one.ids[hits], one.rows[hits], one.ids[absent]))

    def _merged_meanwhile(self, one: RowRead, began: OverlayView) -> list[RowRead]:
        """Returns the reads to repeat in the base, because an overlay's spilled rows were merged. Raises StoreError."""
        where = one.positions()
        gone = where[one.states[where] == ABSENT]
        if len(gone) == 0:
            return []
        overlay, table = began.spilled_to(one.table)
        # It left the view before its rows were removed. So an overlay outside of the view that was not discarded was
        # merged, and the base has its rows.
        view = self._overlays.view
        if overlay in view.live or view.discarded >> overlay.number & 1:
            raise StoreError(f"{self._ssd.path}: rows of overlay {overlay.number} are gone; it was discarded or lost")
        return [one.at(gone, self._numbers[table])]
