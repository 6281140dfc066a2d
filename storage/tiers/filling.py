"""Fills DRAM from SSD, first with the last run's hot ids, then by use in training, while lookups and merges go on.

Rows always come from SSD, which checks each page and holds what merges changed; a version's own files only give hints
about which rows were used most. A row is installed only if SSD did not change since before it was read (`dram_cache`),
so nothing here depends on what a merge does meanwhile.

A group of tables that fits is filled whole, by a walk over SSD, and each of its tables is complete in the end. No row
may be missing then: rows that merges added behind the walk are read after it, and again if merges go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from storage.tiers.arrays import Encoded, Flags, Ids
from storage.tiers.content import Content
from storage.tiers.dram_cache import DramCache
from storage.tiers.expected_hits import ExpectedHits
from storage.tiers.hot_ids import HotIds
from storage.tiers.pace import Pace
from storage.tiers.source import TableSource
from storage.tiers.warmup import COUNTS, cut

# Takes a table, its rows done and all its rows.
Progress = Callable[[str, int, int], None]
_WALK_ROWS = 1 << 16
_READ_IDS = 1 << 14
# Rows installed at once, because installing holds the lock that promotions and merges take.
_INSTALL_ROWS = 1 << 13
# Up to these shares, the hotter part of a list is read before the rest: each in the order of its ids, so that a page is
# read once for a part.
_PARTS = (0.0, 1 / 16, 1 / 4, 1.0)
_LEFT_FREE = 0.02


@dataclass(frozen=True)
class Rows:
    """Two functions that read the base from SSD. Tables are named by their index in the store."""

    #: Takes a table and ids, and returns encoded rows and found flags.
    find: Callable[[int, Ids], tuple[Encoded, Flags]]
    #: Takes a table, a cursor and a limit, and returns rows in ascending order of ids as `SsdTier.export_batch` does.
    walk: Callable[[int, int, int], tuple[int, Ids, Encoded]]


class Filler:
    """Fills a cache once.

    stopping: called repeatedly; filling ends when it returns True. progress: called with a table, its rows done and its
    rows in all as the table is filled.
    """

    def __init__(
        self,
        cache: DramCache,
        version: TableSource,
        content: Content,
        rows: Rows,
        pace: Pace,
        stopping: Callable[[], bool],
        progress: Progress | None = None,
    ) -> None:
        self._cache = cache
        self._version = version
        self._content = content
        self._rows = rows
        self._pace = pace
        self._stopping = stopping
        self._progress = progress
        self.installed = 0

    def run(self, hot: Mapping[str, HotIds], expected: ExpectedHits) -> int:
        """Fills the free room; returns how many rows came in. hot: ids to read first, by name of the table.

        expected: told of each part of them that is in DRAM. Raises StoreError.
        """
        for members, capacity in self._cache.groups():
            left = [index for index in members if not self._cache.is_complete(index)]
            if not left or self._stopping():
                continue
            rows = sum(self._cache.tables[index].rows for index in members)
            if capacity is None or rows <= capacity:
                for index in left:
                    self._fill_whole(index)
            else:
                self._fill_hot(members, hot, expected)
                # The little room that a list leaves free is not worth reading all use counts.
                if self._cache.free_rows(members[0]) > (_LEFT_FREE * capacity if self.installed else 0):
                    self._fill_used(members, capacity)
        return self.installed

    def _fill_whole(self, index: int) -> None:
        cache, spec = self._cache, self._cache.tables[index]
        uses = _UsesInOrder(self._version.uses(spec.name))
        cache.watch(index)
        before = cache.generation
        cursor = done = 0
        while cursor >= 0:
            generation = cache.generation
            following, ids, rows = self._rows.walk(index, cursor, _WALK_ROWS)
            counts = uses.of(ids)
            fits = self._install(generation, index, ids, rows, counts)
            if self._stopping():
                return
            if fits is None:
                continue  # a merge changed SSD meanwhile: read the same rows again
            if not fits:
                return
            cursor = following
            done += len(ids)
            if self._progress is not None:
                self._progress(spec.name, done, spec.rows)
        while True:
            generation = cache.generation
            if self._stopping():  # after the generation was read: another version has another list of changes
                return
            if generation != before and not self._catch_up(index, generation):
                return
            if cache.complete(generation, index) is not None:
                return

    def _catch_up(self, index: int, generation: int) -> bool:
        """Installs the rows that merges changed. Returns False when not all of them fit, or filling is to stop."""
        for changed in self._content.changed(self._cache.tables[index].name):
            for start in range(0, len(changed), _READ_IDS):
                ids = changed[start : start + _READ_IDS]
                rows, found = self._rows.find(index, ids)
                there = found.view(np.bool_)
                fits = self._install(generation, index, ids[there], rows[there], None)
                if fits is False or self._stopping():
                    return False
                if fits is None:
                    return True  # a merge changed SSD meanwhile: the table is not complete yet
        return True

    def _fill_hot(self, members: Sequence[int], hot: Mapping[str, HotIds], expected: ExpectedHits) -> None:
        """Fills DRAM with the ids that were in it last time, or on another machine, the hottest first."""
        lists = {index: hot[name] for index in members if (name := self._cache.tables[index].name) in hot}
        total = sum(len(each.ids) for each in lists.values())
        if total == 0:
            return
        # When the lists do not fit any more, the same share of each is taken. The hottest part of it is what an earlier
        # filling took.
        here = sum(expected.ids_before.get(self._cache.tables[index].name, 0) for index in lists)
        most = min(1.0, (self._cache.free_rows(members[0]) + here) / total)
        for first, last in pairwise(_PARTS):
            for index, each in lists.items():
                part = slice(int(first * most * len(each.ids)), int(last * most * len(each.ids)))
                order = np.argsort(each.ids[part])
                if not self._take(index, each.ids[part][order], each.counts[part][order], expected):
                    return

    def _fill_used(self, members: Sequence[int], capacity: int) -> None:
        """Fills the free room with the rows that training used most."""
        counts = np.zeros(COUNTS, np.int64)
        for index in members:
            for _, used in self._uses(index):
                counts += np.bincount(used, minlength=COUNTS)
        threshold, _ = cut(counts, capacity)
        for exactly in (False, True):
            for index in members:
                for ids, used in self._uses(index):
                    chosen = np.flatnonzero(used == threshold if exactly else used.astype(np.int64) > threshold)
                    if not self._take(index, ids[chosen], used[chosen]):
                        return

    def _uses(self, index: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for part in self._version.uses(self._cache.tables[index].name):
            if self._stopping():
                return
            yield part

    def _take(self, index: int, ids: np.ndarray, counts: np.ndarray, expected: ExpectedHits | None = None) -> bool:
        """Reads rows of ascending ids and installs them. Returns False when no room is left, or filling is to stop."""
        for start in range(0, len(ids), _READ_IDS):
            part = slice(start, start + _READ_IDS)
            while True:
                generation = self._cache.generation
                rows, found = self._rows.find(index, ids[part])
                there = found.view(np.bool_)
                fits = self._install(generation, index, ids[part][there], rows[there], counts[part][there])
                if fits is not None and expected is not None:
                    came = counts[part][there if fits else self._here(index, ids[part])]
                    expected.came(self._cache.tables[index].name, came)
                if self._stopping() or fits is False:
                    return False
                if fits:
                    break
            if self._progress is not None:
                spec = self._cache.tables[index]
                self._progress(spec.name, self._cache.tiers[index].size(), spec.rows)
        return True

    def _here(self, index: int, ids: np.ndarray) -> np.ndarray:
        """Returns which ids (n,) have a row in DRAM: (n,) bool."""
        tiers = self._cache.tiers
        return tiers[index].find(ids)[1].view(np.bool_) if tiers else np.zeros(len(ids), np.bool_)

    def _install(
        self, generation: int, index: int, ids: np.ndarray, rows: np.ndarray, counts: np.ndarray | None
    ) -> bool | None:
        """Installs rows; returns whether every row is in now, or None when SSD has changed since `generation`."""
        for start in range(0, len(ids), _INSTALL_ROWS):
            part = slice(start, start + _INSTALL_ROWS)
            freq = None if counts is None else counts[part]
            installed = self._cache.install_free(generation, index, ids[part], rows[part], freq)
            self._pace.step()
            if installed is None:
                return None
            count, fits = installed
            self.installed += count
            if not fits:
                return False
        return True


class _UsesInOrder:
    """Finds use counts by id, for ids that are asked for in ascending order. An id without a hint has the count 0."""

    def __init__(self, parts: Iterator[tuple[np.ndarray, np.ndarray]]) -> None:
        self._parts = parts
        self._held: list[tuple[np.ndarray, np.ndarray]] = []
        self._ended = False

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the counts (n,) uint8 of ids (n,), ascending, none below those that were asked for before."""
        counts = np.zeros(len(ids), np.uint8)
        if len(ids) == 0:
            return counts
        while not self._ended and (not self._held or len(self._held[-1][0]) == 0 or self._held[-1][0][-1] < ids[-1]):
            part = next(self._parts, None)
            self._ended = part is None
            if part is not None:
                self._held.append(part)
        self._held = [held for held in self._held if len(held[0]) and held[0][-1] >= ids[0]]
        for known, used in self._held:
            places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
            same = known[places] == ids
            counts[same] = used[places[same]]
        return counts
