"""Brings entries of a difference to a GPU, makes them the base's, and removes them.

`tier` explains when, and why in this order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from storage.hbm.base_rows import DIFFERENCE_TIMEOUT_S, SnapshotRows
from storage.hbm.publisher import Publisher
from storage.hbm.replica import GpuSlab, Replica
from storage.hbm.threads import usable_threads
from storage.tiers.arrays import Encoded, Ids
from storage.tiers.overlays import Overlay

# Number of ids whose rows the base takes over in one set.
_ADOPTED_IDS = 1 << 20
# Room is kept for as many rows as the largest of the last _REMEMBERED differences had, and _SPARE more, at most
# _MOST_KEPT of all.
_REMEMBERED, _SPARE, _MOST_KEPT = 8, 1 / 8, 1 / 8
# Buckets that are read sequentially in the time of one random read.
_SCAN = 4


class Differences:
    """Manages the differences of one GPU. The caller holds the tier's lock.

    number: identifies a difference, whose rows have the table numbers of `Replica.virtual`.
    """

    def __init__(self, rows: SnapshotRows, publisher: Publisher) -> None:
        self._rows = rows
        self._publisher = publisher
        self._threads = usable_threads()
        # Numbers of rows of the last differences, by bytes of a row.
        self._sizes: dict[int, deque[int]] = {}

    def bring(self, replica: Replica, mask: int, number: int, overlays: Sequence[Overlay]) -> int:
        """Makes entries under a free number for the rows on the GPU that the overlays change; returns how many.

        Raises StoreError when only some of them were made.
        """
        entries = 0
        rows_of = dict.fromkeys((slab.row_bytes for slab in replica.slabs), 0)
        for table in range(replica.base_tables):
            slab = replica.slab(table)
            virtual = replica.virtual(table, number)
            ids = self._rows.ids(table, overlays)
            space = self._publisher.space(slab)
            for piece in self._rows.pieces(table, ids, len(space)):
                resident = ids[piece][slab.cache.find(table, ids[piece], self._threads) != 0]
                if len(resident) == 0:
                    continue
                taken, rows, missing = self._rows.take(mask, table, resident, space, DIFFERENCE_TIMEOUT_S)
                asking = slab.cache.insert_ask_host(virtual, missing)
                placed = self._insert(slab, virtual, taken, rows)
                if not (asking.all() and placed.all()):
                    # The GPU has no place for this snapshot's rows of these ids: no snapshot may find them there.
                    slab.cache.erase(table, np.concatenate([missing[~asking], taken[~placed]]))
                rows_of[slab.row_bytes] += int(np.count_nonzero(placed))
                entries += int(np.count_nonzero(asking)) + int(np.count_nonzero(placed))
                self._publisher.publish(slab)
        for row_bytes, count in rows_of.items():
            self._sizes.setdefault(row_bytes, deque(maxlen=_REMEMBERED)).append(count)
        return entries

    def keep_room(self, replica: Replica) -> None:
        """Leaves room for a difference like those before, so that rows are not evicted for each one and brought back
        after it.
        """
        for slab in replica.slabs:
            largest = max(self._sizes.get(slab.row_bytes, (0,)))
            slab.cache.reserve(int(min(largest * (1 + _SPARE), slab.cache.capacity_rows * _MOST_KEPT)))

    def adopt(self, replica: Replica, number: int, overlays: Sequence[Overlay]) -> None:
        """Replaces the base entries' rows by those of a difference.

        overlays: those in which it differs from the base.
        """
        for table in range(replica.base_tables):
            slab = replica.slab(table)
            ids = self._rows.ids(table, overlays)
            # Each set waits for the sessions and brings no rows, so it may be large.
            for start in range(0, len(ids), _ADOPTED_IDS):
                piece = ids[start : start + _ADOPTED_IDS]
                slab.cache.adopt(replica.virtual(table, number), table, piece, self._threads)
                self._publisher.publish(slab)

    def clear(self, replica: Replica, number: int, overlays: Sequence[Overlay] = ()) -> None:
        """Removes entries that no session was given, or whose rows the base has too.

        overlays: cover their ids; without them every bucket is searched.
        """
        for slab in replica.slabs:
            gone = 0
            for member in slab.members:
                table = replica.virtual(member, number)
                if overlays and slab.cache.rows_of(table) * _SCAN < slab.cache.bucket_count:
                    gone += slab.cache.erase(table, self._rows.ids(member, overlays), self._threads)
                gone += slab.cache.erase_table(table, self._threads)
            if gone:
                self._publisher.publish(slab)

    def _insert(self, slab: GpuSlab, table: int, ids: Ids, rows: Encoded) -> np.ndarray:
        """Inserts rows and returns which are on the GPU now, (n,) bool."""
        placed = np.zeros(len(ids), np.bool_)
        for piece in slab.pieces(len(ids)):
            placed[piece] = slab.cache.insert_absent(table, ids[piece], rows[piece], self._threads)
            self._publisher.publish(slab)
        return placed
