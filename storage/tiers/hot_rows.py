"""Knows the hot ids of a store: those that DRAM is to be filled with first, and those that are in it now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from storage.tiers.counting import COUNTED
from storage.tiers.dram_cache import DramCache
from storage.tiers.expected_hits import ExpectedHits, uses_of
from storage.tiers.hot_ids import HotIds, load_hot_ids, save_hot_ids
from storage.tiers.recent_lookups import RecentLookups


class HotRows:
    """The list of hot ids in a store's folder, and how far DRAM is filled with it. Thread-safe, `fill` excepted.

    most: the most ids of a list. cache: returns the cache as it is now.
    """

    def __init__(self, folder: Path, most: int, cache: Callable[[], DramCache], lookups: RecentLookups) -> None:
        self._folder = folder
        self._most = most
        self._cache = cache
        self._lookups = lookups
        self._to_fill: Mapping[str, HotIds] = {}
        self._is_filled = False
        self._first = self._expected = ExpectedHits({})
        #: True while somebody waits for the fill before requests come, so that it needs no pauses.
        self.is_awaited = False

    def load(self) -> None:
        """Reads the list of the folder; ids of tables that the store does not have are left out."""
        lists = {} if self._cache().slabs is None else load_hot_ids(self._folder, self._most)
        names = {spec.name for spec in self._cache().tables}
        self._to_fill = {name: hot for name, hot in lists.items() if name in names}
        self._first = self._expected = ExpectedHits(self._to_fill)

    def begin(self) -> tuple[Mapping[str, HotIds], ExpectedHits]:
        """Returns the ids to fill DRAM with, and what is to be told of each part that came in."""
        if self._to_fill:  # otherwise an earlier filling counted what came
            self._expected = ExpectedHits(self._to_fill, self._expected)
        return self._to_fill, self._expected

    def end(self) -> None:
        """Notes that DRAM was filled. Until `save`, a budget that grows, as a new version's does, takes more of it."""
        self._is_filled = True

    def expected_hit_rate(self) -> float | None:
        """Returns the share of lookups that DRAM answers by now if they are those that the list was made from.

        None without a list, or when that does not say.
        """
        cache = self._cache()
        numbers = {spec.name: index for index, spec in enumerate(cache.tables)}
        return self._expected.rate(lambda name: cache.is_complete(numbers[name]))

    def now(self) -> dict[str, HotIds]:
        """Returns the hottest ids in DRAM by name of the table, with what recent lookups found.

        Empty without a budget. Before any lookup, what was found is that of the list in the folder.
        """
        cache = self._cache()
        counts = self._lookups.counts()
        lists = cache.hot_ids(self._most)
        for number, spec in enumerate(cache.tables):
            hot = lists.get(spec.name)
            if hot is None:
                continue
            found = {name: float(count) for name, count in zip(COUNTED, counts[number], strict=False)}
            asked = found["dram"] + found["ssd"] + found["unresolved"]
            if asked > 0:
                hits = found["dram"] * _listed(hot, cache.tiers[number].size())
            else:
                asked, hits = self._first.seen(spec.name)
            lists[spec.name] = replace(hot, found=asked, hits=hits)
        return lists

    def save(self) -> None:
        """Writes the list, which is a better one from now on than that which DRAM was filled by. Raises StoreError."""
        if self._is_filled:
            self._to_fill = {}
        if self._cache().slabs is not None:
            save_hot_ids(self._folder, self.now())


def _listed(hot: HotIds, rows: int) -> float:
    """Returns the share of the hits of `rows` rows in DRAM that those on the list have, at least."""
    left_out = max(0, rows - len(hot.ids))
    if left_out == 0:
        return 1.0
    uses = uses_of(hot.counts)
    return uses / (uses + left_out * uses_of(hot.counts[-1:]))
