"""DRAM is filled from a version's files: all of it when a store is loaded, free room while lookups run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from storage.checkpoint.tables import Shard
from storage.errors import CheckpointError
from storage.specs import TableSpec
from storage.tiers.base import Encoded, Flags, Ids
from storage.tiers.content import Content
from storage.tiers.dram_cache import DramCache
from storage.tiers.hot_ids import HotIds
from storage.tiers.pace import Pace
from storage.tiers.source import TableSource
from storage.tiers.warmup import Filling, cut, refresh, warm

_log = logging.getLogger(__name__)
# table, rows done, rows of the table
Progress = Callable[[str, int, int], None]


def fill_all(
    cache: DramCache,
    version: TableSource,
    content: Content,
    hot: Mapping[str, HotIds],
    read: Callable[[int, Ids], tuple[Encoded, Flags]],
    progress: Progress | None,
    pace: Pace,
) -> None:
    """Fills empty tables, and puts right what merges changed. read: rows and flags of a table's ids on SSD.

    Not while anybody reads.
    """

    def told(spec: TableSpec) -> Callable[[int], None] | None:
        return None if progress is None else lambda done: progress(spec.name, done, spec.rows)

    for members, capacity in cache.groups():
        specs = [cache.tables[index] for index in members]
        fillings = [
            Filling(
                cache.tiers[index],
                lambda name=spec.name: version.shards(name),  # type: ignore[misc]
                hot.get(spec.name),
                told(spec),
            )
            for index, spec in zip(members, specs, strict=True)
        ]
        for index, whole in zip(members, warm(fillings, capacity, pace), strict=True):
            if whole and cache.tiers[index].size() == cache.tables[index].rows:  # none was let go for another
                cache.mark_complete(index)
        for index, spec in zip(members, specs, strict=True):
            changed = content.changed(spec.name)
            refresh(cache, index, changed, lambda ids, t=index: read(t, ids), hot.get(spec.name))  # type: ignore[misc]


def fill_room(
    cache: DramCache, version: TableSource, content: Content, pace: Pace, stopping: Callable[[], bool]
) -> int:
    """Takes the most used rows that are not in DRAM into what room is free, while lookups and merges go on.

    Returns how many came in. A row of the version's files is what SSD holds, unless a merge changed it: so the changed
    ids are left out, and what was read before a merge is not installed after it (`dram_cache`). Where the publisher
    has dropped the version, requests alone fill what is left.
    """
    taken = 0
    try:
        for members, capacity in cache.groups():
            if cache.free_rows(members[0]) > 0 and not all(cache.is_complete(index) for index in members):
                taken += _fill_group(cache, version, content, members, capacity, pace, stopping)
    except (OSError, CheckpointError):
        if version.path.exists():
            raise
        _log.info("%s is gone: the free room in DRAM is filled by requests alone", version.path)
    return taken


def _fill_group(
    cache: DramCache,
    version: TableSource,
    content: Content,
    members: Sequence[int],
    capacity: int | None,
    pace: Pace,
    stopping: Callable[[], bool],
) -> int:
    def shards(index: int) -> Iterator[Shard]:
        for shard in version.shards(cache.tables[index].name):
            if stopping():
                return
            yield shard
            pace.step()

    fillings = [Filling(cache.tiers[index], lambda index=index: shards(index)) for index in members]  # type: ignore[misc]
    threshold = -1 if capacity is None else cut(fillings, capacity)[0]
    taken = 0
    for index in members:
        known = -1
        changed = np.empty(0, np.int64)
        for shard in shards(index):
            for part in np.array_split(np.arange(len(shard.ids)), max(1, len(shard.ids) // 8192)):
                if cache.generation != known:
                    known = cache.generation
                    if stopping():  # after the generation was looked at: another version has another list
                        return taken
                    changed = _together(content.changed(cache.tables[index].name))
                chosen = part[shard.freq[part] >= max(0, threshold)]
                if len(changed):
                    chosen = chosen[~np.isin(shard.ids[chosen], changed, assume_unique=True)]
                count = cache.install_free(known, index, shard.ids[chosen], shard.encoded[chosen], shard.freq[chosen])
                taken += count
                pace.step()
                if stopping() or cache.free_rows(index) <= 0:
                    return taken
    return taken


def _together(parts: Iterator[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *parts])
