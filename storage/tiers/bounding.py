"""Gives a cache without a budget one while lookups run: builds a second cache from it, which then replaces it."""

from __future__ import annotations

from storage.tiers.dram_cache import DramCache
from storage.tiers.warmup import Filling, warm


def bounded(cache: DramCache, dram_bytes: int, negative_ids: int) -> DramCache:
    """Builds a cache within `dram_bytes` from the hottest rows of one without a budget.

    Nothing may write to the other cache meanwhile.
    """
    result = DramCache(cache.tables, dram_bytes, negative_ids)
    result.generation = cache.generation
    result.completions = cache.completions
    result.promotions = list(cache.promotions)
    for members, capacity in result.groups():
        fillings = [
            Filling(result.tiers[index], lambda index=index: cache.exported(index))  # type: ignore[misc]
            for index in members
        ]
        for index, whole in zip(members, warm(fillings, capacity), strict=True):
            if whole and cache.is_complete(index) and result.tiers[index].size() == cache.tiers[index].size():
                result.mark_complete(index)
    return result
