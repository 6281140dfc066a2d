"""The tiered store gives the same bits under every budget, and they are the published rows."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from storage.checkpoint.tables import Shard
from storage.errors import ConfigError, IntegrityError, InvalidInput, StoreError
from storage.specs import LookupSpec, TableSpec
from storage.tiers.ssd.reads import RowRead, SsdReader
from storage.tiers.ssd.tier import SsdTier
from storage.tiers.tiered import TieredStore
from tests.support.examples import examples
from tests.support.storage.tier_rows import FEATURES, Rows, budgets, check, jagged, make_rows, open_store, random_ids


@pytest.mark.parametrize("budget", ["all", "enough", "a tenth", "a handful"])
def test_lookups_are_the_published_rows_under_every_budget(tmp_path: Path, budget: str) -> None:
    rows = make_rows(1)
    rng = np.random.default_rng(2)
    with open_store(tmp_path / "s", rows, budgets(rows)[budget]) as store:
        plan = store.plan(FEATURES)
        for batch in (1, 0, 7, 64, 1):
            ids = random_ids(rows, batch, rng)
            check(rows, FEATURES, ids, plan.lookup(batch, ids))
            store.drain()


def test_the_bits_do_not_depend_on_the_budget_or_on_what_is_cached(tmp_path: Path) -> None:
    rows = make_rows(3)
    stores = [open_store(tmp_path / name, rows, budget) for name, budget in budgets(rows).items()]
    plans = [store.plan(FEATURES) for store in stores]
    rng = np.random.default_rng(4)
    for _ in range(30):
        ids = random_ids(rows, 16, rng)
        results = [plan.lookup(16, ids) for plan in plans]
        for other in results[1:]:
            for a, b in zip(results[0].outputs, other.outputs, strict=True):
                assert a.tobytes() == b.tobytes()
    for store in stores:
        store.close()


def test_with_room_for_all_no_lookup_reads_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(5)

    def unreachable(*_: object) -> None:
        raise AssertionError("the disk was asked")

    for name in ("all", "enough"):
        with open_store(tmp_path / name, rows, budgets(rows)[name]) as store:
            monkeypatch.setattr(SsdReader, "read", unreachable)
            ids = random_ids(rows, 32, np.random.default_rng(6))
            check(rows, FEATURES, ids, store.plan(FEATURES).lookup(32, ids))
            stats = store.stats()
            assert stats.hits["ssd"] == 0
            assert stats.hits["dram"] > 0
            total = sum(t.rows for t in rows.tables)
            assert stats.rows == {"hbm": 0, "overlay": 0, "dram": total, "ssd": total}
            monkeypatch.undo()


def test_a_tenth_of_the_bytes_holds_about_a_tenth_of_the_rows_hottest_first(tmp_path: Path) -> None:
    rows = make_rows(7, users=1000, items=4000)
    with open_store(tmp_path / "s", rows, rows.bytes() // 10) as store:
        stats = store.stats()
        total = sum(t.rows for t in rows.tables)
        assert 0.07 * total <= stats.rows["dram"] <= 0.14 * total  # a row of a small cache takes less
        ids, _, freq = rows.content["item"]
        hot, cold = ids[freq >= 240], ids[freq < 100]
        plan = store.plan([LookupSpec("x", "item")])
        counts = plan.lookup(1, [jagged([hot.tolist()])]).counts
        assert counts.ssd == 0
        counts = plan.lookup(1, [jagged([cold.tolist()])]).counts
        assert counts.dram == 0
        assert counts.ssd == len(cold)


def test_rows_that_are_asked_for_move_up_and_stay_bounded(tmp_path: Path) -> None:
    rows = make_rows(8, users=1000, items=2000)
    for _, _, freq in rows.content.values():
        freq[:] = freq > 200  # so that what is asked for now can become hotter than what was published
    with open_store(tmp_path / "s", rows, rows.bytes() // 10) as store:
        plan = store.plan([LookupSpec("x", "item")])
        ids, _, freq = rows.content["item"]
        asked = ids[freq == 0][-100:]
        for _ in range(20):
            plan.lookup(1, [jagged([asked.tolist()])])
            store.drain()
        assert plan.lookup(1, [jagged([asked.tolist()])]).counts.dram > 50
        sweep = np.array_split(ids, 20)
        for part in sweep:
            plan.lookup(1, [jagged([part.tolist()])])
            store.drain()
        assert store.stats().rows["dram"] <= sum(spec.rows for spec in rows.tables) * 0.15
        for table in store.dram:
            table.check_integrity()


def test_absent_ids_are_remembered_and_cost_no_second_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(9)
    asked: list[int] = []
    real = SsdReader.read

    def counted(self: SsdReader, wanted: Sequence[RowRead], timeout_s: float | None = None) -> None:
        asked.append(sum(map(len, wanted)))
        real(self, wanted, timeout_s)

    monkeypatch.setattr(SsdReader, "read", counted)
    with open_store(tmp_path / "s", rows, rows.bytes() // 10) as store:
        plan = store.plan([LookupSpec("x", "item")])
        absent = list(range(10_000, 10_040))
        assert plan.lookup(1, [jagged([absent])]).counts.absent == 40
        store.drain()
        before = sum(asked)
        assert plan.lookup(1, [jagged([absent])]).counts.absent == 40
        assert sum(asked) - before <= 4  # a cache may forget, rarely


def test_what_does_not_come_in_time_is_unresolved_counted_and_later_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_rows(10)
    gate = threading.Event()
    real = SsdReader.read

    def slow(self: SsdReader, wanted: Sequence[RowRead], timeout_s: float | None = None) -> None:
        real(self, wanted, timeout_s if gate.wait(30 if timeout_s is None else timeout_s) else 0.0)

    with open_store(tmp_path / "s", rows, 200) as store:
        monkeypatch.setattr(SsdReader, "read", slow)
        plan = store.plan([LookupSpec("x", "item"), LookupSpec("y", "item", "none", 2)])
        ids = rows.content["item"][0][:50]
        bags = [jagged([ids.tolist()]), jagged([ids[:2].tolist()])]
        result = plan.lookup(1, bags, timeout_s=0.02)
        counts = result.counts
        assert counts.unresolved > 40
        assert counts.dram + counts.unresolved == 52
        assert store.stats().unresolved == counts.unresolved
        gate.set()
        result = plan.lookup(1, bags, timeout_s=30)
        assert result.counts.unresolved == 0
        assert result.masks[1] is not None
        assert result.masks[1].tolist() == [[1, 1]]


def test_a_failing_disk_is_an_error_and_the_plan_survives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(12)
    with open_store(tmp_path / "s", rows, 200) as store:
        plan = store.plan(FEATURES)
        ids = random_ids(rows, 8, np.random.default_rng(0))

        def broken(*_: object) -> None:
            raise StoreError("reading: disk on fire")

        monkeypatch.setattr(SsdReader, "read", broken)
        with pytest.raises(StoreError, match="on fire"):
            plan.lookup(8, ids)
        monkeypatch.undo()
        check(rows, FEATURES, ids, plan.lookup(8, ids))


def test_sessions_at_once_agree_with_the_reference(tmp_path: Path) -> None:
    rows = make_rows(13)
    failures: list[BaseException] = []
    with open_store(tmp_path / "s", rows, rows.bytes() // 10) as store:

        def session(seed: int) -> None:
            try:
                plan = store.plan(FEATURES)
                rng = np.random.default_rng(seed)
                for _ in range(25):
                    ids = random_ids(rows, 8, rng)
                    check(rows, FEATURES, ids, plan.lookup(8, ids))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=session, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        stats = store.stats()
        assert stats.hits["dram"] > 0
        assert stats.hits["ssd"] > 0
        assert stats.bytes["ssd"] > 0


def test_a_reopened_store_skips_the_bulk_load_and_other_rows_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[int] = []
    real = SsdTier.bulk_load

    def counted(self: SsdTier, table: int, *arguments: Any, **options: Any) -> int:
        loads.append(table)
        return real(self, table, *arguments, **options)

    monkeypatch.setattr(SsdTier, "bulk_load", counted)
    first, second = make_rows(14), make_rows(15)
    second.content["user"] = first.content["user"]
    rng = np.random.default_rng(0)
    for rows, expected in ((first, 2), (first, 2), (second, 3), (second, 3), (first, 4)):
        with open_store(tmp_path / "s", rows, rows.bytes() // 10) as store:
            ids = random_ids(rows, 32, rng)
            check(rows, FEATURES, ids, store.plan(FEATURES).lookup(32, ids))
        assert len(loads) == expected


def test_tables_keep_apart_when_a_model_names_them_in_another_order(tmp_path: Path) -> None:
    rows = make_rows(16)
    with open_store(tmp_path / "s", rows, 200):
        pass
    turned = Rows(dict(reversed(rows.content.items())))
    with open_store(tmp_path / "s", turned, 200) as store:
        ids = random_ids(turned, 32, np.random.default_rng(0))
        check(turned, FEATURES, ids, store.plan(FEATURES).lookup(32, ids))
    alone = Rows({"item": rows.content["item"]})
    with open_store(tmp_path / "s", alone, 200) as store:
        (number,) = store._ssd_numbers
        assert not store.ssd.find(1 - number, rows.content["user"][0], 4)[1].any()


def test_a_load_that_broke_off_is_done_again(tmp_path: Path) -> None:
    rows = make_rows(17, shard_rows=50)

    class Breaking(Rows):
        def shards(self, table: str) -> Iterator[Shard]:
            for index, shard in enumerate(super().shards(table)):
                if table == "item" and index == 2:
                    raise OSError(5, "Input/output error")
                yield shard

    class Damaged(Rows):
        def shards(self, table: str) -> Iterator[Shard]:
            yield from super().shards(table)
            raise IntegrityError("tables/x: ids are not strictly ascending")

    damaged = Damaged(make_rows(18).content)
    with (
        TieredStore.open(tmp_path / "s", damaged.tables, dram_bytes=200) as store,
        pytest.raises(IntegrityError, match="tables/x"),
    ):
        store.load(damaged)
    broken = Breaking(make_rows(18, shard_rows=50).content, shard_rows=50)
    with open_store(tmp_path / "s", make_rows(19), 200):
        pass
    store = TieredStore.open(tmp_path / "s", broken.tables, dram_bytes=200)
    with pytest.raises(StoreError, match="Input/output"):
        store.load(broken)
    store.close()
    with open_store(tmp_path / "s", rows, 200) as store:
        ids = random_ids(rows, 64, np.random.default_rng(0))
        check(rows, FEATURES, ids, store.plan(FEATURES).lookup(64, ids))


def test_loading_tells_how_far_it_is(tmp_path: Path) -> None:
    rows = make_rows(20)
    seen: list[tuple[str, str, int, int]] = []
    with TieredStore.open(tmp_path / "s", rows.tables, dram_bytes=None) as store:
        store.load(rows, lambda *event: seen.append(event))
    for stage in ("ssd", "dram"):
        for spec in rows.tables:
            assert (stage, spec.name, spec.rows, spec.rows) in seen


def test_wrong_use_is_refused_with_a_reason(tmp_path: Path) -> None:
    rows = make_rows(21)
    with open_store(tmp_path / "s", rows, None) as store:
        with pytest.raises(ConfigError, match="nothing"):
            store.plan([LookupSpec("x", "nothing")])
        plan = store.plan(FEATURES)
        with pytest.raises(InvalidInput, match="4 features"):
            plan.lookup(1, [])
        with pytest.raises(StoreError, match="open a new store"):
            store.load(rows)
        with pytest.raises(StoreError, match="another process"):
            TieredStore.open(tmp_path / "s", rows.tables, dram_bytes=None)
    store.close()  # twice is fine
    with pytest.raises(ConfigError, match="twice"):
        TieredStore.open(tmp_path / "t", rows.tables * 2, dram_bytes=None)
    with (
        TieredStore.open(tmp_path / "u", [TableSpec("user", 9)], dram_bytes=None) as store,
        pytest.raises(StoreError, match="'user' of dim 9"),
    ):
        store.load(rows)
    with pytest.raises(ConfigError, match="pooling"):
        LookupSpec("x", "user", "max")
    with pytest.raises(ConfigError, match="length"):
        LookupSpec("x", "user", "none")


class StoreMachine(RuleBasedStateMachine):
    """Lookups, drains and restarts in any order, on one store for each budget, beside the dict."""

    @initialize(seed=st.integers(0, 3), users=st.integers(1, 30), items=st.integers(1, 200))
    def open(self, seed: int, users: int, items: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.rows = make_rows(seed, users, items)
        self.stores: dict[str, TieredStore] = {}
        for name in budgets(self.rows):
            self._start(name)

    def _start(self, name: str) -> None:
        store = open_store(Path(self.folder.name) / name.replace(" ", "_"), self.rows, budgets(self.rows)[name])
        self.stores[name] = store
        self.plans = {name: store.plan(FEATURES) for name, store in self.stores.items()}

    @rule(seed=st.integers(0, 10_000), batch=st.sampled_from([0, 1, 3, 20]))
    def lookup(self, seed: int, batch: int) -> None:
        ids = random_ids(self.rows, batch, np.random.default_rng(seed))
        results = [plan.lookup(batch, ids) for plan in self.plans.values()]
        for result in results:
            check(self.rows, FEATURES, ids, result)
            for a, b in zip(results[0].outputs, result.outputs, strict=True):
                assert a.tobytes() == b.tobytes()

    @rule(name=st.sampled_from(["all", "enough", "a tenth", "a handful"]))
    def drain(self, name: str) -> None:
        self.stores[name].drain()

    @rule(name=st.sampled_from(["enough", "a tenth", "a handful"]))
    def restart(self, name: str) -> None:
        self.stores[name].close()
        self._start(name)

    def teardown(self) -> None:
        for store in getattr(self, "stores", {}).values():
            store.close()
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=examples(10), stateful_step_count=12, deadline=None)
