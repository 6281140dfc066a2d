"""The DRAM budget of a store changes while it is looked up in, and what was hot comes back after a restart."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import numpy as np
import pytest

from storage.errors import ConfigError, StoreError
from storage.specs import LookupSpec
from storage.tiers.counting import COUNTED
from storage.tiers.hot_ids import HOT_IDS
from storage.tiers.tiered import TieredStore
from tests.support.storage.tier_rows import (
    FEATURES,
    applied,
    check,
    jagged,
    make_delta,
    make_rows,
    open_store,
    random_ids,
    rows_of,
    tables_of,
)

DIMS = {"user": 4, "item": 8}


@pytest.mark.parametrize("first", ["nothing", "a tenth", "all"])
def test_a_budget_goes_up_and_down_and_the_rows_stay_the_published_ones(tmp_path: Path, first: str) -> None:
    rows = make_rows(1, users=300, items=1000)
    whole = rows.bytes()
    with open_store(tmp_path / "s", rows, {"nothing": 0, "a tenth": whole // 10, "all": None}[first]) as store:
        plan = store.plan(FEATURES)
        rng = np.random.default_rng(2)
        for budget in (whole // 2, whole // 20, whole * 2, 0, whole // 5):
            store.set_dram_bytes(budget)
            assert store.dram_bytes == budget
            assert store.wait_filled(60)
            for _ in range(3):
                ids = random_ids(rows, 32, rng)
                check(rows, FEATURES, ids, plan.lookup(32, ids))
                store.drain()
            store.check_integrity()
            if budget > whole:
                assert [tier.size() for tier in store.dram] == [spec.rows for spec in rows.tables]
            sizes = [tier.size() * spec.row_bytes for tier, spec in zip(store.dram, rows.tables, strict=True)]
            assert sum(sizes) <= budget
        with pytest.raises(ConfigError, match="dram_bytes"):
            store.set_dram_bytes(-1)


def test_a_larger_budget_is_filled_with_the_hottest_rows_without_being_asked(tmp_path: Path) -> None:
    rows = make_rows(3, users=300, items=1000)
    with open_store(tmp_path / "s", rows, rows.bytes() // 20) as store:
        plan = store.plan([LookupSpec("x", "item")])
        ids, _, freq = rows.content["item"]
        warm = jagged([ids[freq >= 150].tolist()])
        before = plan.lookup(1, [warm]).counts
        assert before.ssd > 0
        store.set_dram_bytes(rows.bytes() * 3 // 4)
        assert store.wait_filled(60)
        assert plan.lookup(1, [warm]).counts.ssd == 0


def test_what_merges_changed_is_not_filled_in_from_the_files(tmp_path: Path) -> None:
    rows = make_rows(4, users=100, items=400)
    tables = tables_of(rows)
    delta = make_delta(tables, DIMS, np.random.default_rng(1), most=300)
    with open_store(tmp_path / "s", rows, 0) as store:
        store.merge(store.stage(delta), at=delta.snapshot)
        now = rows_of(applied(tables, delta), DIMS)
        store.set_dram_bytes(rows.bytes() * 2)
        assert store.wait_filled(60)
        store.check_integrity()
        ids = random_ids(now, 64, np.random.default_rng(5))
        check(now, FEATURES, ids, store.plan(FEATURES).lookup(64, ids))


def test_budgets_change_while_sessions_look_up_and_deltas_are_merged(tmp_path: Path) -> None:
    rows = make_rows(5, users=200, items=600)
    failures: list[BaseException] = []
    stop = threading.Event()
    with open_store(tmp_path / "s", rows, rows.bytes() // 4) as store:
        asked = [random_ids(rows, 16, np.random.default_rng(seed)) for seed in range(8)]
        # A delta that changes nothing that is asked for, so that every lookup has one right answer.
        strange = np.arange(100_000, 100_050)

        def session() -> None:
            plan = store.plan(FEATURES)
            try:
                while not stop.is_set():
                    for ids in asked:
                        check(rows, FEATURES, ids, plan.lookup(16, ids))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=session) for _ in range(2)]
        for thread in threads:
            thread.start()
        from tests.support.storage.tier_rows import Delta

        for turn in range(12):
            store.set_dram_bytes([rows.bytes() * 2, rows.bytes() // 30, rows.bytes() // 2][turn % 3])
            changed = np.full((len(strange), 8), turn, np.float32)
            delta = Delta(f"{turn:032x}", {"item": (strange, changed)})
            store.merge(store.stage(delta), at=delta.snapshot)
        stop.set()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        store.drain()
        store.check_integrity()


def test_what_was_hot_is_in_dram_after_a_restart(tmp_path: Path) -> None:
    rows = make_rows(6, users=300, items=1000)
    for _, _, freq in rows.content.values():
        freq[:] = freq > 200
    ids, _, freq = rows.content["item"]
    asked = ids[freq == 0][:60]
    bags = [jagged([asked.tolist()])]
    budget = rows.bytes() // 4
    with open_store(tmp_path / "s", rows, budget) as store:
        plan = store.plan([LookupSpec("x", "item")])
        for _ in range(20):
            plan.lookup(1, bags)
            store.drain()
        held = int(store.dram[1].find(asked)[1].sum())
        assert held > 50
    assert (tmp_path / "s" / HOT_IDS).is_file()
    with open_store(tmp_path / "s", rows, budget) as store:
        assert store.dram[1].find(asked)[1].sum() >= held
        check(
            rows,
            FEATURES,
            ids_ := random_ids(rows, 32, np.random.default_rng(0)),
            store.plan(FEATURES).lookup(32, ids_),
        )
    (tmp_path / "s" / HOT_IDS).unlink()
    with open_store(tmp_path / "s", rows, budget) as store:
        assert store.dram[1].find(asked)[1].sum() < held


def test_hot_ids_that_came_with_deltas_or_went_with_them(tmp_path: Path) -> None:
    rows = make_rows(7, users=50, items=300)
    tables = tables_of(rows)
    delta = make_delta(tables, DIMS, np.random.default_rng(3), most=200)
    now = rows_of(applied(tables, delta), DIMS)
    fresh = np.setdiff1d(now.content["item"][0], rows.content["item"][0])
    budget = rows.bytes() // 2
    with open_store(tmp_path / "s", rows, budget) as store:
        store.merge(store.stage(delta), at=delta.snapshot)
        plan = store.plan([LookupSpec("x", "item")])
        for _ in range(30):
            plan.lookup(1, [jagged([fresh.tolist()])])
            store.drain()
        held = set(fresh[store.dram[1].find(fresh)[1] == 1].tolist())
        assert held
    with open_store(tmp_path / "s", rows, budget) as store:
        again = set(fresh[store.dram[1].find(fresh)[1] == 1].tolist())
        assert len(again & held) >= 0.8 * len(held)
        ids = random_ids(now, 64, np.random.default_rng(5))
        check(now, FEATURES, ids, store.plan(FEATURES).lookup(64, ids))
        store.check_integrity()


def test_a_list_that_cannot_be_written_is_no_reason_not_to_close(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = make_rows(8)
    store = open_store(tmp_path / "s", rows, 5000)
    (tmp_path / "s" / HOT_IDS).mkdir()
    with pytest.raises(StoreError, match=HOT_IDS):
        store.save_hot_ids()
    with caplog.at_level(logging.WARNING):
        store.close()
    assert "published frequencies" in caplog.text
    with open_store(tmp_path / "s", rows, 5000) as store:
        ids = random_ids(rows, 32, np.random.default_rng(0))
        check(rows, FEATURES, ids, store.plan(FEATURES).lookup(32, ids))


def test_counts_and_sizes_are_kept_by_table(tmp_path: Path) -> None:
    rows = make_rows(9, users=200, items=500)
    for _, _, freq in rows.content.values():
        freq[:] = 0
    with open_store(tmp_path / "s", rows, rows.bytes() // 5) as store:
        plan, other = store.plan(FEATURES), store.plan([LookupSpec("x", "user")])
        rng = np.random.default_rng(0)
        for _ in range(10):
            ids = random_ids(rows, 16, rng)
            result = plan.lookup(16, ids)
            found = [getattr(result.counts, name) for name in COUNTED]
            assert [int(n) for n in result.by_table.sum(0)] == found
            store.drain()
        for _ in range(5):
            plan.lookup(16, ids)
            store.drain()
        other.lookup(1, [jagged([rows.content["user"][0][:10].tolist()])])
        del other
        stats = store.stats()
        assert list(stats.tables) == ["user", "item"]
        for tier in ("overlay", "dram", "ssd"):
            assert sum(table.hits[tier] for table in stats.tables.values()) == stats.hits[tier]
        assert sum(table.absent for table in stats.tables.values()) == stats.absent > 0
        assert all(table.hits["dram"] and table.hits["ssd"] for table in stats.tables.values())
        assert sum(table.rows["dram"] for table in stats.tables.values()) == stats.rows["dram"]
        assert stats.promotions == sum(table.promotions for table in stats.tables.values()) > 0
        assert stats.negative_ids > 0
        costs = store.costs().model()
        assert costs is not None
        assert costs.lookup_ms(1000, 0.5) > costs.lookup_ms(1000, 1.0) > 0


def test_damage_between_the_tiers_is_found(tmp_path: Path) -> None:
    rows = make_rows(10)
    with open_store(tmp_path / "s", rows, rows.bytes() // 2) as store:
        store.check_integrity()
        _, held, _, _ = store.dram[1].export_batch(0, 1)
        store.dram[1].assign(held, np.full((1, 8), 7, np.float32))
        with pytest.raises(StoreError, match=f"'item': DRAM and SSD differ in the row of id {held[0]}"):
            store.check_integrity()
    with pytest.raises(StoreError, match="closed"):
        store.check_integrity()
    with pytest.raises(StoreError, match="closed"):
        store.set_dram_bytes(5)


def test_a_store_closes_while_it_is_being_filled(tmp_path: Path) -> None:
    rows = make_rows(11, users=2000, items=5000, shard_rows=16)
    store: TieredStore = open_store(tmp_path / "s", rows, 0)
    store.set_dram_bytes(rows.bytes())
    store.close()
    assert store.dram == []
