"""Fills DRAM from a published version, the rows that were hot last time first, then the most used ones by the
published frequencies, then puts right what merges changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from storage.checkpoint.tables import Shard
from storage.errors import StoreError
from storage.tiers.base import Encoded, Flags, Ids
from storage.tiers.dram import DramTier
from storage.tiers.dram_cache import DramCache
from storage.tiers.hot_ids import HotIds
from storage.tiers.pace import UNHURRIED, Pace

_CHUNK_ROWS = 1 << 14
_REFRESH_ROWS = 1 << 12
# A hot id goes before every other one: its counter stands above all that are published.
_HOT = 256


@dataclass(frozen=True)
class Filling:
    """One table to be filled. shards: called for each pass over its rows. hot: what was in DRAM last time."""

    table: DramTier
    shards: Callable[[], Iterable[Shard]]
    hot: HotIds | None = None
    progress: Callable[[int], None] | None = None


def warm(fillings: Sequence[Filling], capacity: int | None, pace: Pace = UNHURRIED) -> list[bool]:
    """Inserts the hottest `capacity` rows of tables that share their bytes; None: all rows.

    Returns for each table whether every row of it is in. Two passes over the shards, one when all are taken; memory
    stays bounded by a shard and the lists of hot ids.
    """
    ranks = [_Ranks(filling.hot) for filling in fillings]
    threshold, at_threshold = (-1, 0) if capacity is None else cut(fillings, capacity)
    complete: list[bool] = []
    for filling, rank in zip(fillings, ranks, strict=True):
        done = 0
        whole = True
        for shard in filling.shards():
            for start in range(0, len(shard.ids), _CHUNK_ROWS):
                part = slice(start, start + _CHUNK_ROWS)
                ids = shard.ids[part]
                ranked = rank.of(ids, shard.freq[part])
                chosen = ranked > threshold
                if at_threshold:
                    tied = np.flatnonzero(ranked == threshold)[:at_threshold]
                    chosen[tied] = True
                    at_threshold -= len(tied)
                whole = whole and bool(chosen.all())
                whole = _insert(filling, shard, part, chosen, ranked) and whole
                done += len(ids)
                if filling.progress is not None:
                    filling.progress(done)
                pace.step()
        complete.append(whole)
    return complete


def refresh(
    cache: DramCache,
    table: int,
    changed: Iterable[Ids],
    read: Callable[[Ids], tuple[Encoded, Flags]],
    hot: HotIds | None = None,
) -> None:
    """Puts right a table that was filled from a version's files, where SSD has changed since.

    changed: ids (n,) at a time. read: their encoded rows and found flags (n,) from SSD. A table that does not hold all
    rows keeps the ids that it has and takes the hot ones, so only those are read. Not while anybody reads.
    """
    wanted = np.empty(0, np.int64) if hot is None else np.sort(hot.ids)
    for chunk in changed:
        for start in range(0, len(chunk), _REFRESH_ROWS):
            ids = chunk[start : start + _REFRESH_ROWS]
            held = cache.tiers[table].find(ids)[1].view(np.bool_)
            if not cache.is_complete(table):
                taken = held | _among(ids, wanted)
                ids, held = ids[taken], held[taken]
            rows, flags = read(ids)
            found = flags.view(np.bool_)
            cache.make_room(table, int(np.count_nonzero(found & ~held)), int(np.count_nonzero(held & ~found)))
            cache.settle(table, ids[found], rows[found], ids[~found])
            fresh = found & ~held
            if fresh.any() and not cache.is_complete(table):
                cache.tiers[table].insert_and_evict(ids[fresh], rows[fresh])


class _Ranks:
    """How hot rows are: their published counter, or for an id of the hot list its counter there, above all others."""

    def __init__(self, hot: HotIds | None) -> None:
        ids = np.empty(0, np.int64) if hot is None else hot.ids
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        self._counts = np.empty(0, np.int64) if hot is None else hot.counts[order].astype(np.int64)

    def of(self, ids: np.ndarray, freq: np.ndarray) -> np.ndarray:
        """ids (n,), freq (n,) -> (n,) int64, 0 to 511."""
        ranked = freq.astype(np.int64)
        if len(self._ids):
            places = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
            hot = self._ids[places] == ids
            ranked[hot] = _HOT + self._counts[places[hot]]
        return ranked


def _insert(filling: Filling, shard: Shard, part: slice, chosen: np.ndarray, ranked: np.ndarray) -> bool:
    """Whether all of the chosen rows are in."""
    ids = shard.ids[part]
    if not chosen.any():
        return True
    rows = shard.encoded[part]
    if not chosen.all():
        ids, rows, ranked = ids[chosen], rows[chosen], ranked[chosen]
    try:
        filling.table.insert_or_assign(ids, rows, (ranked % _HOT).astype(np.uint8))
    except StoreError:
        if filling.table.capacity_rows == 0:
            raise
        return False  # full a little early: the rest stays on SSD
    return True


def _among(ids: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    if len(ascending) == 0:
        return np.zeros(len(ids), np.bool_)
    places = np.minimum(np.searchsorted(ascending, ids), len(ascending) - 1)
    return np.asarray(ascending[places] == ids)


def cut(fillings: Sequence[Filling], capacity: int) -> tuple[int, int]:
    """The rank above which every row is taken, -1 for all, and how many rows exactly at it fit too."""
    histogram = np.zeros(2 * _HOT, np.int64)
    for filling in fillings:
        rank = _Ranks(filling.hot)
        for shard in filling.shards():
            histogram += np.bincount(rank.of(shard.ids, shard.freq), minlength=2 * _HOT)
    left = capacity
    for value in range(2 * _HOT - 1, -1, -1):
        if histogram[value] > left:
            return value, left
        left -= int(histogram[value])
    return -1, 0
