"""Fills a DRAM table from a published version, the most used rows first, then with what merges changed since."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from storage.checkpoint.tables import Shard
from storage.errors import StoreError
from storage.tiers.base import Flags, Ids, Rows
from storage.tiers.dram import DramTier
from storage.tiers.dram_cache import DramCache

_CHUNK_ROWS = 1 << 16
_REFRESH_ROWS = 1 << 12


def warm(
    table: DramTier,
    shards: Callable[[], Iterable[Shard]],
    capacity: int | None,
    progress: Callable[[int], None] | None = None,
) -> bool:
    """Inserts the hottest `capacity` rows (None: all); returns whether every row is in.

    shards: called for each pass over the version; memory stays bounded by a chunk of rows.
    """
    threshold, at_threshold = (-1, 0) if capacity is None else _cut(shards(), capacity)
    done = 0
    complete = True
    for shard in shards():
        for start in range(0, len(shard.ids), _CHUNK_ROWS):
            part = slice(start, start + _CHUNK_ROWS)
            freq = shard.freq[part]
            chosen = freq > threshold
            if at_threshold:
                tied = np.flatnonzero(freq == threshold)[:at_threshold]
                chosen[tied] = True
                at_threshold -= len(tied)
            ids, rows = shard.ids[part], shard.rows[part]
            if not chosen.all():
                complete = False
                ids, rows, freq = ids[chosen], rows[chosen], freq[chosen]
            if len(ids):
                try:
                    table.insert_or_assign(ids, rows, freq)
                except StoreError:
                    if capacity is None:
                        raise
                    return False  # full a little early: the rest stays on SSD
            done += len(ids)
            if progress is not None:
                progress(done)
    return complete


def refresh(cache: DramCache, table: int, changed: Iterable[Ids], read: Callable[[Ids], tuple[Rows, Flags]]) -> None:
    """Puts right a table that was filled from a version's files, where SSD has changed since.

    changed: ids (n,) at a time. read: their rows (n, D) and found flags (n,) from SSD. A table that does not hold every
    row keeps the ids that it has, so only those are read. Not while anybody reads.
    """
    for chunk in changed:
        for start in range(0, len(chunk), _REFRESH_ROWS):
            ids = chunk[start : start + _REFRESH_ROWS]
            held = cache.tiers[table].find(ids)[1].view(np.bool_)
            if not cache.complete[table]:
                ids, held = ids[held], held[held]
            rows, flags = read(ids)
            found = flags.view(np.bool_)
            cache.make_room(table, int(np.count_nonzero(found & ~held)), int(np.count_nonzero(held & ~found)))
            cache.settle(table, ids[found], rows[found], ids[~found])


def _cut(shards: Iterable[Shard], capacity: int) -> tuple[int, int]:
    """The counter above which every row is taken, and how many rows exactly at it fit too."""
    histogram = np.zeros(256, np.int64)
    for shard in shards:
        histogram += np.bincount(shard.freq, minlength=256)
    left = capacity
    for value in range(255, -1, -1):
        if histogram[value] > left:
            return value, left
        left -= int(histogram[value])
    return -1, 0
