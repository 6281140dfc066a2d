"""The hit rate that a list of hot ids predicts is the one that another store has under the same traffic."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from storage.specs import LookupSpec
from storage.tiers.expected_hits import covered
from storage.tiers.hot_ids import HOT_IDS, HotIds, load_hot_ids, save_hot_ids
from storage.tiers.tiered import TieredStore
from tests.support.storage.tier_rows import Rows, jagged, make_rows, open_store

ITEM = [LookupSpec("x", "item")]


def traffic(rows: Rows, batches: int, seed: int) -> list[np.ndarray]:
    """Draws batches of ids by Zipf's law; which of them are hot has nothing to do with the published counts."""
    ids = np.random.default_rng(9).permutation(rows.content["item"][0])
    weights = 1 / np.arange(1, len(ids) + 1)
    rng = np.random.default_rng(seed)
    return [rng.choice(ids, 200, p=weights / weights.sum()) for _ in range(batches)]


def hit_rate(store: TieredStore, batches: list[np.ndarray]) -> float:
    plan = store.plan(ITEM)
    dram = found = 0
    for ids in batches:
        counts = plan.lookup(1, [jagged([ids.tolist()])]).counts
        dram, found = dram + counts.dram, found + counts.dram + counts.ssd
        store.drain()
    return dram / found


@pytest.mark.parametrize("share", [1, 0.3])
def test_it_is_what_another_store_has_in_its_first_lookups(tmp_path: Path, share: float) -> None:
    rows = make_rows(1, users=20, items=3000)
    for _, _, freq in rows.content.values():
        freq[:] %= 3
    budget = rows.bytes() // 4
    with open_store(tmp_path / "a", rows, budget) as store:
        hit_rate(store, traffic(rows, 300, 2))
        store.hot._lookups.restart()
        hit_rate(store, traffic(rows, 20, 3))
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a" / HOT_IDS, tmp_path / "b" / HOT_IDS)
    with open_store(tmp_path / "b", rows, int(budget * share)) as store:
        expected = store.hot.expected_hit_rate()
        assert expected is not None
        seen = hit_rate(store, traffic(rows, 5, 4))
        assert expected == pytest.approx(seen, abs=0.05)
    with open_store(tmp_path / "c", rows, int(budget * share)) as store:
        assert store.hot.expected_hit_rate() is None
        assert hit_rate(store, traffic(rows, 5, 4)) < seen - 0.2


def test_it_is_all_once_dram_holds_every_row(tmp_path: Path) -> None:
    rows = make_rows(1)
    with open_store(tmp_path / "s", rows, rows.bytes() // 4) as store:
        hit_rate(store, traffic(rows, 3, 2))
    with open_store(tmp_path / "s", rows, rows.bytes() * 2) as store:
        assert store.hot.expected_hit_rate() == 1.0


def test_without_lookups_the_list_says_what_it_said_before(tmp_path: Path) -> None:
    rows = make_rows(1)
    budget = rows.bytes() // 4
    with open_store(tmp_path / "s", rows, budget) as store:
        hit_rate(store, traffic(rows, 20, 2))
    with open_store(tmp_path / "s", rows, budget) as store:
        expected = store.hot.expected_hit_rate()
    with open_store(tmp_path / "s", rows, budget) as store:
        assert store.hot.expected_hit_rate() == pytest.approx(expected, abs=0.02)


def test_ids_of_tables_that_are_gone_count_for_nothing(tmp_path: Path) -> None:
    rows = make_rows(1)
    hot = HotIds(np.arange(5), np.full(5, 9, np.uint8), 100.0, 0.0)
    mine = {"gone": hot, "item": HotIds(rows.content["item"][0][:3], np.full(3, 9, np.uint8), 10.0, 9.0)}
    (tmp_path / "s").mkdir()
    save_hot_ids(tmp_path / "s", mine)
    with open_store(tmp_path / "s", rows, rows.bytes() // 4) as store:
        assert store.hot.expected_hit_rate() == pytest.approx(0.9)
        assert set(store.hot.now()) == {"user", "item"}
    assert set(load_hot_ids(tmp_path / "s", 10**6)) == {"user", "item"}


def test_a_list_covers_another_one_by_the_uses_of_what_both_have() -> None:
    mine = {
        "user": HotIds(np.array([1, 2]), np.array([9, 1], np.uint8), 100.0, 50.0),
        "item": HotIds(np.array([1]), np.array([5], np.uint8), 100.0, 50.0),
    }
    assert covered(mine, mine) == pytest.approx(1.0)
    assert covered(mine, {}) == 0.0
    theirs = {"user": HotIds(np.array([3, 1]), np.array([7, 7], np.uint8))}
    assert covered(mine, theirs) == pytest.approx(0.45)
    assert covered({}, theirs) == 1.0
