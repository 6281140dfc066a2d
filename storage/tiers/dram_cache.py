"""DRAM holds some rows of SSD, and the ids known to be absent. What it answers always agrees with SSD.

Without a budget every table has memory of its own and grows; within one, tables of a row size share a cache (`slabs`).

A row is installed here some time after it was read from SSD, and a merge may have changed it on SSD in between.
Therefore every read carries the cache's `generation` from before it, and every change of SSD increases it:

    a merge                               a read of id X and its promotion
    1 SSD changes (one atomic step)       a generation is noted
    2 generation goes up, under the lock  b SSD is read
    3 X is assigned or erased here        c under the lock: X is installed if the generation is the noted one
    4 X is forgotten as absent

If c comes before 2, what it installs, old or new, is there when 3 and 4 correct it. If c comes after 2, then either
a came before 2 and the row is dropped, or a came after 2, so b after 1, and the row is the new one. No old row can be
installed after 2. Between 1 and 4 this cache may answer with the old row, but the merge's overlay, which is asked first
and dropped only after 4, hides it from every lookup.

A table is complete while every row of it is here; an id that it does not find is absent then. A reader looks for the id
first and checks completeness afterwards, because an eviction ends completeness before it removes the row. A table may
become complete while lookups run: `completions` rises before it does. A reader that finds another number after the
lookup than before it cannot conclude that an id is absent, because its row may have come in between.
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
    """Holds the rows of a store that are in DRAM. Its methods name tables by their index.

    dram_bytes: the bytes for all tables together; None means no bound. The attribute `promotions` counts, by table, the
    rows that came in because they were asked for.
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
        """Replaces the tables by empty ones of these sizes. Nothing may read meanwhile."""
        self.tables = tuple(tables)
        self.slabs: Slabs | None = None
        if self.dram_bytes is None:
            self.tiers = [DramTier(spec.dim, row_type=spec.row_type) for spec in self.tables]
            for tier, spec in zip(self.tiers, self.tables, strict=True):
                tier.reserve(spec.rows)
        else:
            self.slabs = Slabs(self.tables, self.dram_bytes)
            self.tiers = self.slabs.tiers
        # Holds without a budget until `_give_up`, because a table of its own evicts nothing.
        self._complete = [False] * len(self.tables)
        self.promotions = [0] * len(self.tables)
        self.negative = [NegativeCache(self._negative_ids) for _ in self.tables]

    def groups(self) -> list[tuple[tuple[int, ...], int | None]]:
        """Returns the tables that share their bytes, and how many rows they hold together; None for all."""
        if self.slabs is None:
            return [((index,), None) for index in range(len(self.tables))]
        return [(slab.members, slab.cache.capacity_rows) for slab in self.slabs.all]

    def is_complete(self, table: int) -> bool:
        """Returns whether every row of a table is here. Ask only after the ids were looked up."""
        # The order matters: `watch` sets the two in the reverse order.
        return (self.slabs is None or self.slabs.is_complete(table)) and self._complete[table]

    def mark_complete(self, table: int) -> None:
        """Records that every row of a table is in now. Nothing else may write meanwhile."""
        self.watch(table)
        self.completions += 1
        self._complete[table] = True

    def watch(self, table: int) -> None:
        """Notes from now on whether a row of a table is evicted. Call it before the table is filled whole."""
        self._complete[table] = False
        if self.slabs is not None:
            self.slabs.mark_complete(table)

    def complete(self, generation: int, table: int) -> bool | None:
        """Marks a table complete that was filled whole since `watch`.

        Returns None when SSD has changed since `generation`, and False when a row of the table was evicted.
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
        """Installs what a read brought, unless SSD changed since."""
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
        """Installs encoded rows that are not here in free room; None when SSD has changed since `generation`.

        Returns how many rows came in, and whether there was room for all. Raises StoreError when there is no budget and
        the system has no more memory.
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
        """Returns how many more rows fit, by the budget of the table's row size; 0 after `release`."""
        slabs = self.slabs
        if slabs is None:
            return 1 << 62 if self.tiers else 0
        return slabs.free_rows(table)

    def forget_reads(self) -> None:
        """Makes rows that were read until now be dropped instead of installed."""
        with self._lock:
            self.generation += 1

    def make_room(self, table: int, new: int, gone: int) -> None:
        """Makes room before SSD gains `new` rows and loses `gone`; a complete table without it stops being complete."""
        if self.slabs is None or not self.is_complete(table) or new <= gone:
            return
        if not self.slabs.make_room(table, new - gone):
            self._give_up(table)

    def settle(self, table: int, ids: np.ndarray, rows: np.ndarray, removed: np.ndarray) -> None:
        """Updates the rows here after SSD changed. rows (n, row_bytes) of ids (n,); removed (m,): ids without a row.

        A complete table takes all rows; another one only those of ids that it has. It never fails for lack of room:
        rows that do not fit stay on SSD alone.
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
        """Changes the budget while lookups run; rows that do not fit are evicted when this returns.

        The cache must have a budget already: `bounding` makes a bounded cache of one without. One thread calls it at a
        time.
        """
        assert self.slabs is not None
        self.dram_bytes = check_dram_bytes(dram_bytes)
        self.slabs.give(dram_bytes)

    def hot_ids(self, most: int) -> dict[str, HotIds]:
        """Returns the ids in DRAM by name of the table, hottest first, at most `most` together."""
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
        """Yields all rows of a table with their use counts in no order, a shard at a time.

        Nothing may be inserted meanwhile.
        """
        spec = self.tables[table]
        cursor = 0
        while cursor >= 0:
            cursor, ids, rows, freq = self.tiers[table].export_encoded(cursor, _EXPORT_ROWS)
            yield Shard(ids, rows, freq, RowCodec(spec.row_type, spec.dim))

    def table_bytes(self, table: int) -> int:
        """Returns the bytes of DRAM that a table takes; of a shared cache, by its share of the rows."""
        return self.tiers[table].memory_bytes()

    def evictions(self, table: int) -> int:
        """Returns how many rows of a table were evicted, for others or for a smaller budget."""
        return 0 if self.slabs is None else self.slabs.evicted(table)

    def check_integrity(self) -> None:
        """Raises a RuntimeError that says which rule of an index is broken. Slow."""
        for tier in self.tiers:
            if self.slabs is None:
                tier.check_integrity()
        if self.slabs is not None:
            for slab in self.slabs.all:
                slab.cache.check_integrity()

    def fixed_bytes(self) -> int:
        """Returns the part of `memory_bytes` that does not count against the budget; 0 without a budget."""
        return 0 if self.slabs is None else self.slabs.fixed_bytes()

    def memory_bytes(self) -> int:
        """Returns the bytes that the tables take."""
        if self.slabs is not None:
            return self.slabs.memory_bytes()
        return sum(tier.memory_bytes() for tier in self.tiers)

    def release(self) -> None:
        """Releases the memory; the cache must not be used any more."""
        with self._lock:
            self.generation += 1
            self.tiers = []  # promotions that are still queued are not installed
            self.slabs = None
            self.negative = []

    def _give_up(self, table: int) -> None:
        self._complete[table] = False
