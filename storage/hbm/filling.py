"""Chooses the rows of DRAM that are used most, to fill a GPU with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from storage.tiers.arrays import Flags, Ids
from storage.tiers.dram_cache import DramCache


def hottest(cache: DramCache, tables: Sequence[int], rows: int) -> Iterator[tuple[int, Ids, Flags]]:
    """Yields about `rows` ids of some tables with their use counts, in pieces, a table at a time.

    It passes over DRAM twice while it changes: a row that is no longer there when it is fetched is left out.
    """
    counts = np.zeros(256, np.int64)
    total = 0
    for table in tables:
        for shard in cache.exported(table):
            counts += np.bincount(shard.freq, minlength=256)
            total += len(shard.ids)
    threshold, left = 0, 0
    if total > rows:
        above = np.cumsum(counts[::-1])[::-1]  # used at least so often
        threshold = int(np.argmax(above <= rows)) if (above <= rows).any() else 256
        # Of the ids just below the threshold, take as many as fit.
        left = rows - (int(above[threshold]) if threshold < 256 else 0)
    for table in tables:
        for shard in cache.exported(table):
            chosen = shard.freq >= threshold
            if left > 0 and threshold > 0:
                tied = np.flatnonzero(shard.freq == threshold - 1)[:left]
                chosen[tied] = True
                left -= len(tied)
            if chosen.any():
                yield table, shard.ids[chosen], shard.freq[chosen]
