"""Lists the hottest ids of a store, for people who ask: by recent lookups, or by the counts that were published."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from storage.checkpoint.tables import Shard
from storage.tiers.planning.use_codes import uses_of_codes

if TYPE_CHECKING:
    from storage.tiers.tiered import TieredStore

# The most rows whose published use counts are read for a list: reading them passes over all rows of a table.
MOST_PUBLISHED = 2_000_000
# Ids of all tables together among which the hottest of each table are looked for.
_MOST_KNOWN = 4096


@dataclass(frozen=True)
class HottestIds:
    """The hottest ids of each table with their use counts, hottest first."""

    #: "traffic": recent lookups, in DRAM with a budget. "published": counts that came with the version. "": there are
    #: too many rows to look.
    source: str
    #: ids (n,) int64 and uses (n,) float64 by name of the table.
    tables: dict[str, tuple[np.ndarray, np.ndarray]]


def hottest_ids(store: TieredStore, most: int) -> HottestIds:
    """Returns at most `most` ids of each table. The lookups of requests go on meanwhile.

    With a DRAM budget it passes over the index of the cache twice; see `MOST_PUBLISHED` for a store without one.
    """
    cache = store.dram_cache
    if cache.slabs is not None:
        found = cache.hot_ids(_MOST_KNOWN)
        uses = uses_of_codes()
        return HottestIds(
            "traffic", {name: (hot.ids[:most], uses[hot.counts[:most]]) for name, hot in sorted(found.items())}
        )
    if sum(tier.size() for tier in cache.tiers) > MOST_PUBLISHED:
        return HottestIds("", {})
    return HottestIds(
        "published",
        {spec.name: _published(cache.exported(index), most) for index, spec in enumerate(store.tables)},
    )


def _published(shards: Iterable[Shard], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids with the highest published counts."""
    ids, codes = np.empty(0, np.int64), np.empty(0, np.uint8)
    for shard in shards:
        ids, codes = np.concatenate([ids, shard.ids]), np.concatenate([codes, shard.freq])
        kept = np.argsort(-codes.astype(np.int16), kind="stable")[:most]
        ids, codes = ids[kept], codes[kept]
    return ids, uses_of_codes()[codes]
