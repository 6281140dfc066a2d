"""Fills tables from a source of rows that is in memory already, the most used ones first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from storage.checkpoint.tables import Shard
from storage.errors import StoreError
from storage.tiers.dram import DramTier

_CHUNK_ROWS = 1 << 14
COUNTS = 256


@dataclass(frozen=True)
class Filling:
    """One table to be filled."""

    table: DramTier
    #: Called for each pass over the table's rows.
    shards: Callable[[], Iterable[Shard]]


def warm(fillings: Sequence[Filling], capacity: int | None) -> list[bool]:
    """Inserts the hottest `capacity` rows of tables that share their bytes; None: all rows.

    Returns for each table whether every row of it is in. Makes two passes over the shards, or one for all rows.
    """
    threshold, at_threshold = (-1, 0)
    if capacity is not None:
        counts = np.zeros(COUNTS, np.int64)
        for filling in fillings:
            for shard in filling.shards():
                counts += np.bincount(shard.freq, minlength=COUNTS)
        threshold, at_threshold = cut(counts, capacity)
    complete: list[bool] = []
    for filling in fillings:
        whole = True
        for shard in filling.shards():
            for start in range(0, len(shard.ids), _CHUNK_ROWS):
                part = slice(start, start + _CHUNK_ROWS)
                chosen = shard.freq[part].astype(np.int64) > threshold
                if at_threshold:
                    tied = np.flatnonzero(shard.freq[part] == threshold)[:at_threshold]
                    chosen[tied] = True
                    at_threshold -= len(tied)
                whole = whole and bool(chosen.all())
                whole = _insert(filling, shard, part, chosen) and whole
        complete.append(whole)
    return complete


def cut(counts: np.ndarray, capacity: int) -> tuple[int, int]:
    """Returns the use count above which every row is taken, -1 for all, and how many rows exactly at it fit too.

    counts: (256,) how many rows have each use count.
    """
    left = capacity
    for value in range(len(counts) - 1, -1, -1):
        if counts[value] > left:
            return value, left
        left -= int(counts[value])
    return -1, 0


def _insert(filling: Filling, shard: Shard, part: slice, chosen: np.ndarray) -> bool:
    """Inserts the chosen rows of a part of a shard; returns whether all of them are in."""
    ids = shard.ids[part]
    if not chosen.any():
        return True
    rows, freq = shard.encoded[part], shard.freq[part]
    if not chosen.all():
        ids, rows, freq = ids[chosen], rows[chosen], freq[chosen]
    try:
        filling.table.insert_or_assign(ids, rows, freq)
    except StoreError:
        if filling.table.capacity_rows == 0:
            raise
        return False  # full a little early: the rest stays on SSD
    return True
