"""Finds rows that a GPU did not have, any number of ids of each table, in one round of reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storage._table import Lookup, RowSource
from storage.errors import StoreError
from storage.specs import POOLINGS
from storage.tiers.counting import COUNTED, HBM, LookupCounts, LookupTotals
from storage.tiers.lookup_plan import LookupPlan, PlannedStore


@dataclass(frozen=True)
class WantedRows:
    """Rows of one table to be found, and the array that they are written to."""

    #: The table's index in the store.
    table: int
    #: (n,) int64.
    ids: np.ndarray
    #: (n, 1, dim) float32, C-contiguous, written in place.
    rows: np.ndarray


@dataclass(frozen=True)
class FoundRows:
    """The result of `RowPlan.find`. `counts` and `by_table` are as in `LookupResult`."""

    #: One (n, 1) uint8 array for each `WantedRows`, 1 where the id has a row; the rows of other ids are zeros.
    masks: list[np.ndarray]
    counts: LookupCounts
    by_table: np.ndarray


class RowPlan(LookupPlan):
    """Finds rows of any tables for a GPU; `TieredStore.plan_rows` makes one. Not thread-safe."""

    def __init__(self, store: PlannedStore, total: LookupTotals) -> None:
        self._of_table: dict[int, Lookup] | None = {}
        super().__init__(store, (), total)

    def bind(self) -> None:
        """Does what `LookupPlan.bind` does."""
        with self._busy:
            self._of_table = {}

    def release(self) -> None:
        """Does what `LookupPlan.release` does."""
        with self._busy:
            self._of_table = None

    def find(self, wanted: Sequence[WantedRows], timeout_s: float | None = None, mask: int = 0) -> FoundRows:
        """Finds rows and writes them in place. wanted: at least one, no table twice. Raises StoreError.

        timeout_s, mask: the same as for LookupPlan.lookup.
        """
        with self._busy:
            return self._find(wanted, timeout_s, mask)

    def dim(self, table: int) -> int:
        """Returns the number of values in a row of a table."""
        return self._store.tables[table].dim

    def count_hbm(self, by_table: np.ndarray) -> None:
        """Adds the occurrences (T,) of ids that a GPU answered."""
        self._total.by_table[:, HBM] += by_table

    def _find(self, wanted: Sequence[WantedRows], timeout_s: float | None, mask: int) -> FoundRows:
        started = time.monotonic_ns()
        deadline = None if timeout_s is None else started / 1e9 + timeout_s
        lookups = [(part.table, self._lookup_of(part.table)) for part in wanted]
        masks = [np.empty((len(part.ids), 1), np.uint8) for part in wanted]
        offsets = np.arange(max(len(part.ids) for part in wanted) + 1, dtype=np.int64)
        missing = 0

        def begin(slots: int) -> None:
            nonlocal missing
            for part, found, (_, lookup) in zip(wanted, masks, lookups, strict=True):
                count = len(part.ids)
                missing += lookup.begin(count, [part.ids], [offsets[: count + 1]], [part.rows], [found], mask=slots)

        view = self._begin(mask, begin)
        reads = reads_ns = 0
        if missing:
            asked = time.monotonic_ns()
            reads = self._resolve(lookups, view, deadline)
            reads_ns = time.monotonic_ns() - asked
        by_table = np.zeros((len(self._store.tables), len(COUNTED)), np.uint64)
        for table, lookup in lookups:
            by_table[table, :HBM] = lookup.finish()
        counts = LookupCounts(*by_table.sum(0).tolist())
        self._total.add(counts, by_table, time.monotonic_ns() - started, reads, reads_ns if reads else 0)
        return FoundRows(masks, counts, by_table)

    def _lookup_of(self, table: int) -> Lookup:
        if self._of_table is None:
            raise StoreError("the store is closed")
        if table not in self._of_table:
            tables: list[RowSource] = [tier.table for tier in self._store.dram_cache.tiers]
            self._of_table[table] = Lookup(tables, [(table, POOLINGS.index("none"), 1)], self._store.overlay_tables)
        return self._of_table[table]
