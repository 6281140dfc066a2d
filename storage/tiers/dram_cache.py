"""The rows of SSD that are held in DRAM, with the ids known to be absent: always what SSD holds, or nothing.

A row gets here from a read of SSD, some time after the read; a merge may have changed it on SSD in between. So every
read carries the cache's `generation` from before it, and every change of SSD raises it:

    a merge                               a read of id X and its promotion
    1 SSD changes (one atomic step)       a generation is noted
    2 generation goes up, under the lock  b SSD is read
    3 X is assigned or erased here        c under the lock: X is installed if the generation is the noted one
    4 X is forgotten as absent

If c comes before 2, what it installs, old or new, is there when 3 and 4 put it right. If c comes after 2, then either
a came before 2 and the row is dropped, or a came after 2, so b after 1, and the row is the new one. Nothing old can
come in after 2. Between 1 and 4 this cache may answer with the old row: the merge's overlay, which is asked first and
goes only after 4, covers it for everyone.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from storage.errors import StoreError
from storage.specs import TableSpec
from storage.tiers.budget import row_cost, split_budget
from storage.tiers.dram import DramTier
from storage.tiers.negative import NegativeCache
from storage.tiers.promoter import Promotion

# A table that DRAM holds whole answers for absent ids itself.
_UNUSED_NEGATIVE_IDS = 64


class DramCache:
    """DRAM tables within a budget. dram_bytes: for all tables together, None without a bound.

    complete: by table, whether every row is here, so that what is not here is absent.
    """

    def __init__(self, tables: Sequence[TableSpec], dram_bytes: int | None, negative_ids: int) -> None:
        self.tables = tuple(tables)
        self.generation = 0
        self._dram_bytes = dram_bytes
        self._negative_ids = max(1, negative_ids // max(1, len(self.tables)))
        self._lock = threading.Lock()
        self.build(tables)

    def build(self, tables: Sequence[TableSpec]) -> None:
        """Empty tables for these sizes. Not while anybody reads."""
        self.tables = tuple(tables)
        self.capacity = split_budget(self.tables, self._dram_bytes)
        self.tiers = [
            DramTier(spec.dim, capacity_rows=capacity or 0)
            for spec, capacity in zip(self.tables, self.capacity, strict=True)
        ]
        for table, spec, capacity in zip(self.tiers, self.tables, self.capacity, strict=True):
            if capacity is None:
                table.reserve(spec.rows)
        self.complete = [False] * len(self.tables)
        self.negative = [
            NegativeCache(_UNUSED_NEGATIVE_IDS if capacity is None else self._negative_ids)
            for capacity in self.capacity
        ]

    def install(self, promotion: Promotion) -> None:
        """Takes in what a read brought, unless SSD changed since."""
        with self._lock:
            table = promotion.table
            if promotion.generation != self.generation or self.complete[table]:
                return
            count = len(promotion.ids)
            if self.capacity[table] is None:  # a table without a bound of its own, in a store that has one
                count = min(count, self._room(table))
            if count:
                self.tiers[table].insert_and_evict(promotion.ids[:count], promotion.rows[:count])
            self.negative[table].add(promotion.absent)

    def forget_reads(self) -> None:
        """What was read until now is not installed any more."""
        with self._lock:
            self.generation += 1

    def make_room(self, table: int, new: int, gone: int) -> None:
        """Before SSD gets `new` rows and loses `gone`: a complete table that cannot take them stops being complete."""
        if not self.complete[table]:
            return
        capacity = self.capacity[table]
        room = self._room(table) if capacity is None else capacity - self.tiers[table].size()
        if new - gone > room:
            self._give_up(table)

    def settle(self, table: int, ids: np.ndarray, rows: np.ndarray, removed: np.ndarray) -> None:
        """Puts right what is here after SSD changed. rows (n, D) of ids (n,); removed (m,): ids that have none now.

        A complete table takes all rows; another one only those of ids that it has. Never fails for want of room: what
        does not fit is left to SSD.
        """
        tier = self.tiers[table]
        if len(removed):
            tier.erase(removed)
        if len(ids):
            try:
                if self.complete[table]:
                    tier.insert_or_assign(ids, rows)
                else:
                    tier.assign(ids, rows)
            except StoreError:
                self._give_up(table)
                tier.erase(ids)  # some may be the old rows
            self.negative[table].forget(ids)

    def memory_bytes(self) -> int:
        """Bytes that the tables take."""
        return sum(tier.memory_bytes() for tier in self.tiers)

    def release(self) -> None:
        """Lets go of the memory; nothing may be asked any more."""
        with self._lock:
            self.generation += 1
            self.complete = [True] * len(self.tables)  # what is still queued is not installed
            self.tiers = []
            self.negative = []

    def _give_up(self, table: int) -> None:
        if self.complete[table]:
            if self.capacity[table] is None:
                self.negative[table] = NegativeCache(self._negative_ids)
            self.complete[table] = False

    def _room(self, table: int) -> int:
        if self._dram_bytes is None:
            return 1 << 62
        used = sum(tier.size() * row_cost(spec) for tier, spec in zip(self.tiers, self.tables, strict=True))
        return max(0, self._dram_bytes - used) // row_cost(self.tables[table])
