"""The rows of SSD that are held in DRAM, with the ids known to be absent: always what SSD holds, or nothing.

Within a budget each table has room for a number of rows; one that needs more than it has lets the coldest go.

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

A table is complete while every row of it is here; what it does not find is absent then. Whoever looks asks for the id
first and for completeness after: a row that is let go takes the completeness with it before it goes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from storage.checkpoint.tables import Shard
from storage.errors import StoreError
from storage.rows import RowCodec
from storage.specs import TableSpec
from storage.tiers.budget import check_dram_bytes, row_cost, split_budget
from storage.tiers.dram import DramTier
from storage.tiers.hot_ids import HotIds
from storage.tiers.negative import NegativeCache
from storage.tiers.promoter import Promotion

_EXPORT_ROWS = 1 << 14


class DramCache:
    """DRAM of a store. dram_bytes: for all tables together, None without a bound. Tables by their index.

    promotions: by table, rows that came in because they were asked for.
    """

    def __init__(self, tables: Sequence[TableSpec], dram_bytes: int | None, negative_ids: int) -> None:
        self.tables = tuple(tables)
        self.generation = 0
        self.dram_bytes = check_dram_bytes(dram_bytes)
        self._negative_ids = max(1, negative_ids // max(1, len(self.tables)))
        self._lock = threading.Lock()
        self.build(tables)

    def build(self, tables: Sequence[TableSpec]) -> None:
        """Empty tables for these sizes. Not while anybody reads."""
        self.tables = tuple(tables)
        self.capacity = split_budget(self.tables, self.dram_bytes)
        self.tiers = [
            DramTier(spec.dim, capacity_rows=capacity or 0, row_type=spec.row_type)
            for spec, capacity in zip(self.tables, self.capacity, strict=True)
        ]
        for tier, spec, capacity in zip(self.tiers, self.tables, self.capacity, strict=True):
            if capacity is None:
                tier.reserve(spec.rows)
        self._complete = [False] * len(self.tables)
        self.promotions = [0] * len(self.tables)
        self._evicted = [0] * len(self.tables)
        self.negative = [NegativeCache(self._negative_ids) for _ in self.tables]

    def groups(self) -> list[tuple[tuple[int, ...], int | None]]:
        """Tables that share their bytes, and how many rows those hold; None: all."""
        return [((index,), capacity) for index, capacity in enumerate(self.capacity)]

    def is_complete(self, table: int) -> bool:
        """Whether every row of a table is here. Asked after the ids were looked for."""
        return self._complete[table]

    def mark_complete(self, table: int) -> None:
        """Every row of a table is in now. Only where no lookup can have begun before."""
        self._complete[table] = True

    def install(self, promotion: Promotion) -> None:
        """Takes in what a read brought, unless SSD changed since."""
        with self._lock:
            table = promotion.table
            if promotion.generation != self.generation or not self.tiers or self.is_complete(table):
                return
            count = len(promotion.ids)
            if self.capacity[table] is None:  # a table without a bound of its own, in a store that has one
                count = min(count, self.free_rows(table))
            if count:
                tier = self.tiers[table]
                before = tier.size()
                admitted = tier.insert_and_evict(promotion.ids[:count], promotion.rows[:count])
                self.promotions[table] += admitted
                self._evicted[table] += max(0, admitted - (tier.size() - before))
            self.negative[table].add(promotion.absent)

    def install_free(self, generation: int, table: int, ids: np.ndarray, rows: np.ndarray, freq: np.ndarray) -> int:
        """Takes encoded rows that are not here into free room, unless SSD changed since. Returns how many came in."""
        with self._lock:
            if generation != self.generation or not self.tiers:
                return 0
            tier = self.tiers[table]
            fresh = np.flatnonzero(tier.find(ids)[1] == 0)[: max(0, self.free_rows(table))]
            if len(fresh) == 0:
                return 0
            before = tier.size()
            with suppress(StoreError):  # full a little early
                tier.insert_or_assign(ids[fresh], rows[fresh], freq[fresh])
            return tier.size() - before

    def free_rows(self, table: int) -> int:
        """Rows that fit in beside those that are here, by the budget of the table's row size; none after `release`."""
        capacity, tiers = self.capacity[table], self.tiers
        if not tiers:
            return 0
        if capacity is not None:
            return capacity - tiers[table].size()
        if self.dram_bytes is None:
            return 1 << 62
        used = sum(tier.size() * row_cost(spec) for tier, spec in zip(tiers, self.tables, strict=True))
        return max(0, self.dram_bytes - used) // row_cost(self.tables[table])

    def forget_reads(self) -> None:
        """What was read until now is not installed any more."""
        with self._lock:
            self.generation += 1

    def make_room(self, table: int, new: int, gone: int) -> None:
        """Before SSD gets `new` rows and loses `gone`: a complete table that cannot take them stops being complete."""
        if self.is_complete(table) and new - gone > self.free_rows(table):
            self._give_up(table)

    def settle(self, table: int, ids: np.ndarray, rows: np.ndarray, removed: np.ndarray) -> None:
        """Puts right what is here after SSD changed. rows (n, row_bytes) of ids (n,); removed (m,): ids without one.

        A complete table takes all rows; another one only those of ids that it has. Never fails for want of room: what
        does not fit is left to SSD.
        """
        tier = self.tiers[table]
        if len(removed):
            tier.erase(removed)
        if len(ids):
            try:
                if self.is_complete(table):
                    tier.insert_or_assign(ids, rows)
                else:
                    tier.assign(ids, rows)
            except StoreError:
                self._give_up(table)
                tier.erase(ids)  # some may be the old rows
            self.negative[table].forget(ids)

    def hot_ids(self, most: int) -> dict[str, HotIds]:
        """What is in DRAM, by name of the table, hottest first, at most `most` ids together."""
        total = sum(tier.size() for tier in self.tiers)
        found: dict[str, HotIds] = {}
        for index, spec in enumerate(self.tables):
            shards = list(self.exported(index))
            ids = np.concatenate([np.empty(0, np.int64), *(shard.ids for shard in shards)])
            counts = np.concatenate([np.empty(0, np.uint8), *(shard.freq for shard in shards)])
            order = np.argsort(-counts.astype(np.int64), kind="stable")
            if total > most:
                order = order[: most * len(ids) // total]
            found[spec.name] = HotIds(ids[order], counts[order])
        return found

    def exported(self, table: int) -> Iterator[Shard]:
        """All rows of a table with their use counts, some at a time, in no order. Nothing may be inserted meanwhile."""
        codec = RowCodec(self.tables[table].row_type, self.tables[table].dim)
        cursor = 0
        while cursor >= 0:
            cursor, ids, rows, freq = self.tiers[table].export_encoded(cursor, _EXPORT_ROWS)
            yield Shard(ids, rows, freq, codec)

    def evictions(self, table: int) -> int:
        """Rows of a table that were let go for others."""
        return self._evicted[table]

    def table_bytes(self, table: int) -> int:
        """What a table takes of DRAM."""
        return self.tiers[table].memory_bytes()

    def check_integrity(self) -> None:
        """Raises RuntimeError that says which rule of an index is broken. Slow."""
        for tier in self.tiers:
            tier.table.check_integrity()

    def memory_bytes(self) -> int:
        """Bytes that the tables take."""
        return sum(tier.memory_bytes() for tier in self.tiers)

    def release(self) -> None:
        """Lets go of the memory; nothing may be asked any more."""
        with self._lock:
            self.generation += 1
            self.tiers = []  # what is still queued is not installed
            self.negative = []

    def _give_up(self, table: int) -> None:
        self._complete[table] = False
