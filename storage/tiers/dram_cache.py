"""The rows of SSD that are held in DRAM, with the ids known to be absent: always what SSD holds, or nothing.

Without a budget every table has memory of its own and grows; within one, tables of a row size share a cache (`slabs`).

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
first and for completeness after: a row that is let go takes the completeness with it before it goes. A table may become
complete while lookups run: `completions` rises before, and who read it before the lookup and finds another number after
it cannot say that an id is absent, for its row may have come in between.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np

from storage.checkpoint.tables import Shard
from storage.errors import StoreError
from storage.rows import RowCodec
from storage.specs import TableSpec
from storage.tiers.dram import DramTier
from storage.tiers.hot_ids import HotIds
from storage.tiers.negative import NegativeCache
from storage.tiers.planning.budget import check_dram_bytes
from storage.tiers.promoter import Promotion
from storage.tiers.slabs import Slabs

_EXPORT_ROWS = 1 << 14


class DramCache:
    """DRAM of a store. dram_bytes: for all tables together, None without a bound. Tables by their index.

    promotions: by table, rows that came in because they were asked for.
    """

    def __init__(self, tables: Sequence[TableSpec], dram_bytes: int | None, negative_ids: int) -> None:
        self.tables = tuple(tables)
        self.generation = 0
        self.completions = 0
        self.dram_bytes = check_dram_bytes(dram_bytes)
        self._negative_ids = max(1, negative_ids // max(1, len(self.tables)))
        self._lock = threading.Lock()
        self.build(tables)

    def build(self, tables: Sequence[TableSpec]) -> None:
        """Empty tables for these sizes. Not while anybody reads."""
        self.tables = tuple(tables)
        self.slabs: Slabs | None = None
        if self.dram_bytes is None:
            self.tiers = [DramTier(spec.dim, row_type=spec.row_type) for spec in self.tables]
            for tier, spec in zip(self.tiers, self.tables, strict=True):
                tier.reserve(spec.rows)
        else:
            self.slabs = Slabs(self.tables, self.dram_bytes)
            self.tiers = self.slabs.tiers
        # Without a budget, and until it was given up: nothing goes from a table of its own.
        self._complete = [False] * len(self.tables)
        self.promotions = [0] * len(self.tables)
        self.negative = [NegativeCache(self._negative_ids) for _ in self.tables]

    def groups(self) -> list[tuple[tuple[int, ...], int | None]]:
        """Tables that share their bytes, and how many rows those hold; None: all."""
        if self.slabs is None:
            return [((index,), None) for index in range(len(self.tables))]
        return [(slab.members, slab.cache.capacity_rows) for slab in self.slabs.all]

    def is_complete(self, table: int) -> bool:
        """Whether every row of a table is here. Asked after the ids were looked for."""
        # In this order, as `watch` does it the other way round.
        return (self.slabs is None or self.slabs.is_complete(table)) and self._complete[table]

    def mark_complete(self, table: int) -> None:
        """Every row of a table is in now. Only while nobody else writes."""
        self.watch(table)
        self.completions += 1
        self._complete[table] = True

    def watch(self, table: int) -> None:
        """Before a table is filled whole: from now on it is noticed whether a row of it is let go."""
        self._complete[table] = False
        if self.slabs is not None:
            self.slabs.mark_complete(table)

    def complete(self, generation: int, table: int) -> bool | None:
        """Marks a table that was filled whole since `watch`; None when SSD has changed since `generation`.

        False: a row of it was let go.
        """
        with self._lock:
            if generation != self.generation or not self.tiers:
                return None if self.tiers else False
            if self.slabs is not None and not self.slabs.is_complete(table):
                return False
            self.completions += 1
            self._complete[table] = True
            return True

    def install(self, promotion: Promotion) -> None:
        """Takes in what a read brought, unless SSD changed since."""
        with self._lock:
            table = promotion.table
            if promotion.generation != self.generation or not self.tiers or self.is_complete(table):
                return
            if len(promotion.ids):
                self.promotions[table] += self.tiers[table].insert_and_evict(promotion.ids, promotion.rows)
            self.negative[table].add(promotion.absent)

    def install_free(
        self, generation: int, table: int, ids: np.ndarray, rows: np.ndarray, freq: np.ndarray | None
    ) -> tuple[int, bool] | None:
        """Takes encoded rows that are not here into free room; None when SSD has changed since `generation`.

        Returns how many came in, and whether there was room for all. Raises StoreError where memory has no bound, and
        the system has no more of it.
        """
        with self._lock:
            if generation != self.generation:
                return None
            if not self.tiers:
                return 0, False
            tier = self.tiers[table]
            before = tier.size()
            fresh = np.arange(len(ids)) if before == 0 else np.flatnonzero(tier.find(ids)[1] == 0)
            wanted = len(fresh)
            fresh = fresh[: max(0, self.free_rows(table))]
            if len(fresh):
                try:
                    tier.insert_or_assign(ids[fresh], rows[fresh], None if freq is None else freq[fresh])
                except StoreError:
                    if self.slabs is None:
                        raise
                    # It is full a little early.
            came = tier.size() - before
            return came, came == wanted

    def free_rows(self, table: int) -> int:
        """Rows that fit in beside those that are here, by the budget of the table's row size; none after `release`."""
        slabs = self.slabs
        if slabs is None:
            return 1 << 62 if self.tiers else 0
        return slabs.free_rows(table)

    def forget_reads(self) -> None:
        """What was read until now is not installed any more."""
        with self._lock:
            self.generation += 1

    def make_room(self, table: int, new: int, gone: int) -> None:
        """Before SSD gets `new` rows and loses `gone`: a complete table that cannot take them stops being complete."""
        if self.slabs is None or not self.is_complete(table) or new <= gone:
            return
        if not self.slabs.make_room(table, new - gone):
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

    def set_dram_bytes(self, dram_bytes: int) -> None:
        """Changes the budget while lookups run; rows that do not fit are gone when this returns.

        Not for a cache without a budget: `bounding` makes another one of it. One change at a time.
        """
        assert self.slabs is not None
        self.dram_bytes = check_dram_bytes(dram_bytes)
        self.slabs.give(dram_bytes)

    def hot_ids(self, most: int) -> dict[str, HotIds]:
        """What is in DRAM, by name of the table, hottest first, at most `most` ids together."""
        found: dict[str, HotIds] = {}
        slabs = () if self.slabs is None else self.slabs.all
        rows = sum(slab.cache.size() for slab in slabs)
        for slab in slabs:
            part = slab.cache.size() if rows <= most else most * slab.cache.size() // rows
            tables, ids, counts = slab.cache.hot_ids(max(1, part))
            for number, name in enumerate(slab.names):
                own = tables == number
                found[name] = HotIds(ids[own], counts[own])
        return found

    def exported(self, table: int) -> Iterator[Shard]:
        """All rows of a table with their use counts, some at a time, in no order. Nothing may be inserted meanwhile."""
        spec = self.tables[table]
        cursor = 0
        while cursor >= 0:
            cursor, ids, rows, freq = self.tiers[table].export_encoded(cursor, _EXPORT_ROWS)
            yield Shard(ids, rows, freq, RowCodec(spec.row_type, spec.dim))

    def table_bytes(self, table: int) -> int:
        """What a table takes of DRAM; of a shared cache, by its share of the rows."""
        return self.tiers[table].memory_bytes()

    def evictions(self, table: int) -> int:
        """Rows of a table that were let go for others, or for a smaller budget."""
        return 0 if self.slabs is None else self.slabs.evicted(table)

    def check_integrity(self) -> None:
        """Raises RuntimeError that says which rule of an index is broken. Slow."""
        for tier in self.tiers:
            if self.slabs is None:
                tier.check_integrity()
        if self.slabs is not None:
            for slab in self.slabs.all:
                slab.cache.check_integrity()

    def fixed_bytes(self) -> int:
        """What of `memory_bytes` is taken beside the budget, however small it is; 0 without one."""
        return 0 if self.slabs is None else self.slabs.fixed_bytes()

    def memory_bytes(self) -> int:
        """Bytes that the tables take."""
        if self.slabs is not None:
            return self.slabs.memory_bytes()
        return sum(tier.memory_bytes() for tier in self.tiers)

    def release(self) -> None:
        """Lets go of the memory; nothing may be asked any more."""
        with self._lock:
            self.generation += 1
            self.tiers = []  # what is still queued is not installed
            self.slabs = None
            self.negative = []

    def _give_up(self, table: int) -> None:
        self._complete[table] = False
