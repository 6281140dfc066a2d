"""Tests how a DRAM budget is divided into bytes by row size, and these into rows of caches."""

from __future__ import annotations

import numpy as np
import pytest

from storage.errors import ConfigError
from storage.specs import TableSpec
from storage.tiers.planning.budget import INDEX_BYTES_PER_ROW, check_dram_bytes, split_bytes
from storage.tiers.planning.forecast import Forecast, SlabCurve
from storage.tiers.slabs import Slabs, slab_bytes


def test_bytes_are_split_by_weight_up_to_the_need_and_the_rest_by_need() -> None:
    assert split_bytes([1000, 3000], [1, 1], 2000) == [1000, 1000]
    assert split_bytes([500, 3000], [1, 1], 2000) == [500, 1500]
    assert split_bytes([1000, 3000], [1, 3], 2000) == [500, 1500]
    assert split_bytes([1000, 3000], [0, 0], 2000) == [1000, 1000]
    assert split_bytes([1000, 3000], [1, 9], 8000) == [2000, 6000]
    assert split_bytes([0, 0], [0, 0], 100) == [0, 0]
    assert split_bytes([10, 10], [1, 1], 0) == [0, 0]
    rng = np.random.default_rng(0)
    for _ in range(200):
        needed = rng.integers(0, 1000, 4).tolist()
        total = int(rng.integers(0, 5000))
        shares = split_bytes(needed, rng.random(4).tolist(), total)
        assert sum(shares) <= total
        if sum(needed) <= total:
            assert all(share >= need for share, need in zip(shares, needed, strict=True))
        else:
            assert all(share <= need for share, need in zip(shares, needed, strict=True))
            assert sum(shares) >= total - 4


def test_a_budget_that_cannot_be_is_refused() -> None:
    assert check_dram_bytes(None) is None
    for wrong in (-1, 2**63):
        with pytest.raises(ConfigError, match="dram_bytes"):
            check_dram_bytes(wrong)


def test_tables_of_one_row_size_share_a_cache_and_the_budget_is_kept() -> None:
    tables = [TableSpec("a", 4, rows=5000), TableSpec("b", 64, rows=5000), TableSpec("c", 4, rows=0)]
    whole = slab_bytes(16, 5000, 2) + slab_bytes(256, 5000, 1)
    slabs = Slabs(tables, whole)
    assert [slab.members for slab in slabs.all] == [(0, 2), (1,)]
    assert all(slab.cache.capacity_rows >= 5000 for slab in slabs.all)
    for total in (whole // 10, 0, whole // 3):
        slabs.give(total)
        assert sum(slab.dram_bytes for slab in slabs.all) <= total
        fixed = [slab_fixed(16, 2), slab_fixed(256, 1)]
        for table, tier in zip(tables, slabs.tiers, strict=True):
            for start in range(0, 5000, 500):
                tier.insert_and_evict(np.arange(start, start + 500), np.ones((500, table.dim), np.float32))
        assert slabs.memory_bytes() <= total + sum(fixed) + 8192
        if total:
            assert all(slab.cache.size() >= 0.7 * slab.cache.capacity_rows > 0 for slab in slabs.all)


def slab_fixed(row_bytes: int, tables: int) -> int:
    from storage._table import Cache

    return Cache.bytes_of(row_bytes, 0, tables)


def test_a_slab_that_is_held_whole_grows_for_new_rows_as_far_as_the_budget_goes() -> None:
    tables = [TableSpec("a", 4, rows=100_000)]
    slabs = Slabs(tables, slab_bytes(16, 200_000, 1))
    assert slabs.all[0].cache.capacity_rows < 130_000
    ids = np.arange(100_000)
    slabs.tiers[0].insert_or_assign(ids, np.zeros((len(ids), 4), np.float32))
    assert slabs.make_room(0, 60_000)
    assert slabs.all[0].cache.capacity_rows >= 160_000
    assert not slabs.make_room(0, 200_000)
    assert slabs.tiers[0].size() == 100_000


def curve(row_bytes: int, rows: int, lookups: float, knee: float) -> SlabCurve:
    at = np.linspace(0, rows, 50)
    hits = 1 - np.exp(-at / (rows * knee))
    return SlabCurve(
        ("t",), row_bytes, row_bytes + INDEX_BYTES_PER_ROW, rows, lookups, at.astype(np.int64), hits / hits[-1]
    )


def test_bytes_move_step_by_step_to_where_the_hits_are_and_stay_there() -> None:
    tables = [TableSpec("a", 4, rows=50_000), TableSpec("b", 64, rows=50_000)]
    total = slab_bytes(256, 10_000, 1)
    slabs = Slabs(tables, total)
    forecast = Forecast((curve(16, 50_000, 1e6, 0.3), curve(256, 50_000, 1e4, 0.3)))
    before = slabs.all[0].dram_bytes
    rates = []
    for _ in range(100):
        if not slabs.balance(forecast):
            break
        now = [slab.dram_bytes for slab in slabs.all]
        assert sum(now) <= total
        rates.append(forecast.hit_rate_of(now))
    else:
        pytest.fail("it never comes to rest")
    assert len(rates) > 3
    assert rates == sorted(rates)
    assert slabs.all[0].dram_bytes > 2 * before
    assert rates[-1] > forecast.hit_rate(total) - 0.02
    slabs.give(total // 2)  # The proportions are kept.
    assert slabs.all[0].dram_bytes == pytest.approx(now[0] / 2, rel=0.2)
    flat = Forecast((curve(16, 50_000, 0, 0.3), curve(256, 50_000, 0, 0.3)))
    assert not slabs.balance(flat)
