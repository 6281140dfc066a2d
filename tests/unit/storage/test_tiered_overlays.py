"""Overlays over a tiered store are seen by those whose mask shows them, and are merged invisibly, or dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.checkpoint.fingerprint import table_fingerprint
from storage.checkpoint.tables import Shard
from storage.errors import CheckpointError, IntegrityError, NotFound, StoreError
from storage.specs import LookupSpec
from storage.tiers.slabs import slab_bytes
from storage.tiers.ssd.keys import MARKERS, SPILLS
from storage.tiers.ssd.reads import RowRead, SsdReader
from storage.tiers.ssd.sorted_changes import SortedChanges
from storage.tiers.ssd.tier import SsdTier
from storage.tiers.tiered import MERGE_STEPS, StoreLimits, TieredStore
from tests.support.storage.tier_rows import (
    EDGE_IDS,
    FEATURES,
    Delta,
    Rows,
    Tables,
    applied,
    budgets,
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
BUDGETS = ["all", "enough", "a tenth", "a handful"]
ITEM = LookupSpec("x", "item", "none", 1)


def look(store: TieredStore, tables: Tables, mask: int, seed: int = 0, plan: Any = None) -> None:
    rows = rows_of(tables, DIMS)
    rng = np.random.default_rng(seed)
    plan = plan or store.plan(FEATURES)
    for batch in (1, 40):
        ids = random_ids(rows, batch, rng)
        check(rows, FEATURES, ids, plan.lookup(batch, ids, mask=mask))
    edges = [jagged([[i] for i in EDGE_IDS]) for _ in FEATURES]
    check(rows, FEATURES, edges, plan.lookup(len(EDGE_IDS), edges, mask=mask))


def delta_of(name: str, ids: list[int], value: float, gone: tuple[int, ...] = ()) -> Delta:
    rows = np.full((len(ids), DIMS[name]), value, np.float32)
    return Delta(f"{int(value):032x}", {name: (np.array(ids), rows)}, {name: np.array(gone, np.int64)})


def value_of(store: TieredStore, i: int, mask: int) -> float | None:
    result = store.plan([ITEM]).lookup(1, [jagged([[i]])], mask=mask)
    assert result.masks[0] is not None
    return float(result.outputs[0][0, 0, 0]) if result.masks[0][0, 0] else None


@pytest.mark.parametrize("spill", [False, True])
@pytest.mark.parametrize("budget", BUDGETS)
def test_each_mask_gives_its_own_snapshot_before_and_after_merges(tmp_path: Path, budget: str, spill: bool) -> None:
    rows = make_rows(1)
    rng = np.random.default_rng(2)
    snapshots = [tables_of(rows)]
    deltas: list[Delta] = []
    masks = [0]
    with open_store(tmp_path / "s", rows, budgets(rows)[budget]) as store:
        plan = store.plan(FEATURES)
        for _ in range(4):
            deltas.append(make_delta(snapshots[-1], DIMS, rng))
            masks.append(masks[-1] | 1 << store.stage(deltas[-1], spill=spill))
            snapshots.append(applied(snapshots[-1], deltas[-1]))
        for seed, (tables, mask) in enumerate(zip(snapshots, masks, strict=True)):
            look(store, tables, mask, seed, plan)
            store.drain()
        for merged, delta in enumerate(deltas):
            steps: list[str] = []
            store.merge(merged, at=delta.snapshot, on_step=steps.append)
            assert tuple(steps) == MERGE_STEPS
            assert store.at == delta.snapshot
            for tables, mask in zip(snapshots[merged + 1 :], masks[merged + 1 :], strict=True):
                look(store, tables, mask, merged, plan)
                store.drain()
                look(store, tables, mask, merged, plan)
        look(store, snapshots[-1], 0)
        stats = store.stats()
        assert stats.rows["overlay"] == 0
        assert store.overlay_stats() == {}
        assert store.ssd.is_empty(SPILLS, MARKERS)
        if budget == "all":
            assert stats.rows["ssd"] == stats.rows["dram"] == sum(map(len, snapshots[-1].values()))
            assert all(store.is_complete(table) for table in range(2))
        if not spill:
            assert stats.hits["overlay"] > 0


@pytest.mark.parametrize("spill", [False, True])
def test_a_removed_id_is_absent_and_comes_back_as_new(tmp_path: Path, spill: bool) -> None:
    rows = make_rows(3)
    with open_store(tmp_path / "s", rows, 200) as store:
        for i in (-1, 0, 2**63 - 1, -(2**63)):
            first = store.stage(delta_of("item", [i], 1), spill=spill)
            second = store.stage(delta_of("item", [], 2, gone=(i,)), spill=spill)
            third = store.stage(delta_of("item", [i], 3), spill=spill)
            one, two, three = 1 << first, 1 << first | 1 << second, 1 << first | 1 << second | 1 << third
            assert [value_of(store, i, mask) for mask in (one, two, three)] == [1, None, 3]
            for number, expected in ((first, [1, None, 3]), (second, [None, None, 3]), (third, [3, 3, 3])):
                store.merge(number, at="aa" * 16)
                store.drain()
                masks = [mask for mask in (one, two, three) if mask >> number & 1]
                assert [value_of(store, i, mask) for mask in masks] == expected[-len(masks) :]


def test_a_rolled_back_overlay_is_dropped_from_the_top_or_the_middle(tmp_path: Path) -> None:
    rows = make_rows(4)
    with open_store(tmp_path / "s", rows, None) as store:
        before = value_of(store, 5, 0)
        first, second, third = (store.stage(delta_of("item", [5, 6 + n], n + 1)) for n in range(3))
        store.discard(second)
        assert value_of(store, 5, 1 << first | 1 << third) == 3
        store.discard(third)
        assert value_of(store, 5, 1 << first) == 1
        fourth = store.stage(delta_of("item", [5], 4))
        assert fourth == 3
        assert value_of(store, 5, 1 << first | 1 << fourth) == 4
        assert value_of(store, 5, 0) == before
        with pytest.raises(StoreError, match=r"\[1, 2\], which were discarded"):
            value_of(store, 5, 0b111)
        with pytest.raises(StoreError, match=r"\[4\], which were discarded or never staged"):
            value_of(store, 5, 1 << 4)
        with pytest.raises(StoreError, match="no overlay 1"):
            store.merge(second, at="aa" * 16)
        with pytest.raises(StoreError, match="no overlay 2"):
            store.discard(third)


def test_an_old_mask_never_shows_what_is_staged_later(tmp_path: Path) -> None:
    rows = make_rows(5)
    with open_store(tmp_path / "s", rows, 200) as store:
        plan, other = store.plan([ITEM]), store.plan([ITEM])
        pinned = 1 << store.stage(delta_of("item", [5], 1))
        assert plan.lookup(1, [jagged([[5]])], mask=pinned).counts.overlay == 1
        store.merge(0, at="aa" * 16)
        for n in range(150):  # more than there are slots
            number = store.stage(delta_of("item", [5], 100 + n))
            result = plan.lookup(1, [jagged([[5]])], mask=pinned)
            assert result.outputs[0][0, 0, 0] == 1
            assert other.lookup(1, [jagged([[5]])], mask=pinned | 1 << number).outputs[0][0, 0, 0] == 100 + n
            store.discard(number)


def test_at_most_63_overlays_are_staged(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", make_rows(6), None) as store:
        for n in range(63):
            assert store.stage(delta_of("item", [n], n)) == n
        with pytest.raises(StoreError, match="63 overlays are staged"):
            store.stage(delta_of("item", [1], 1))
        assert [value_of(store, n, (1 << 63) - 1) for n in range(63)] == list(range(63))
        store.discard(30)
        number = store.stage(delta_of("item", [99], 99))
        assert number > 62
        assert value_of(store, 99, 1 << number) == 99


def test_past_its_bytes_a_delta_is_served_from_ssd(tmp_path: Path) -> None:
    rows = make_rows(7)
    small, large = delta_of("item", [1, 2], 1), delta_of("item", list(range(1000)), 2, gone=(5000,))
    with open_store(tmp_path / "s", rows, 200, limits=StoreLimits(overlay_bytes=20_000)) as store:
        first, second, third = store.stage(small), store.stage(large), store.stage(small, spill=True)
        stats = store.overlay_stats()
        assert list(stats) == [first, second, third]
        assert [stats[n].spilled for n in stats] == [False, True, True]
        assert [(stats[n].rows, stats[n].removed) for n in stats] == [(2, 0), (1000, 1), (2, 0)]
        assert stats[first].bytes < 1000 < stats[second].bytes < 1000 * 100
        assert stats[first].snapshot == small.snapshot
        assert store.stats().rows["overlay"] == 1004
        store.discard(third)
        assert value_of(store, 999, 1 << first | 1 << second) == 2
        assert value_of(store, 999, 1 << first) is None
        store.merge(first, at="aa" * 16)
        store.merge(second, at="bb" * 16)
        assert value_of(store, 999, 0) == 2
        assert store.ssd.is_empty(SPILLS, MARKERS)


@pytest.mark.parametrize("spill", [False, True])
def test_fingerprints_are_those_of_the_delta(tmp_path: Path, spill: bool) -> None:
    rows = make_rows(8)
    delta = make_delta(tables_of(rows), DIMS, np.random.default_rng(1), most=250)
    with open_store(tmp_path / "s", rows, 200) as store:
        store.stage(make_delta(tables_of(rows), DIMS, np.random.default_rng(2)))
        number = store.stage(delta, spill=spill)
        hits = store.stats().hits
        for name, (ids, changed) in delta.rows.items():
            assert store.fingerprint(number, name) == table_fingerprint(ids, changed, delta.gone[name])
        assert store.stats().hits == hits  # nobody asked
        with pytest.raises(NotFound, match="nothing"):
            store.fingerprint(number, "nothing")


def test_a_delta_that_breaks_leaves_nothing(tmp_path: Path) -> None:
    rows = make_rows(9)

    class Breaking(Delta):
        def shards(self, table: str) -> Iterator[Shard]:
            yield next(super().shards(table))
            raise IntegrityError("tables/x: not what was published")

    ids = list(range(20))
    four = (np.array([1]), np.ones((1, 4), np.float32))
    bad: list[tuple[Any, type[Exception], str]] = [
        (Breaking("aa" * 16, delta_of("item", ids, 1).rows), IntegrityError, "tables/x"),
        (delta_of("item", [3, 4, 4], 1), CheckpointError, "'item'"),
        (delta_of("item", [3, 4], 1, gone=(4,)), CheckpointError, "'item'"),
        (Delta("aa" * 16, {"other": four}), CheckpointError, "'other' of dim 4"),
        (Delta("aa" * 16, {"item": four}), CheckpointError, "'item' of dim 4"),
    ]
    with open_store(tmp_path / "s", rows, 200) as store:
        for _ in range(20):  # more often than there are slots
            for delta, error, text in bad:
                for spill in (False, True):
                    with pytest.raises(error, match=text):
                        store.stage(delta, spill=spill)
        assert store.overlay_stats() == {}
        assert all(table.size() == 0 for table in store.overlay_tables)
        assert store.ssd.is_empty(SPILLS, MARKERS)
        assert value_of(store, 3, 1 << store.stage(delta_of("item", [3], 7))) == 7


def test_a_merge_that_fails_changes_nothing_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_rows(10)
    tables = tables_of(rows)
    delta = make_delta(tables, DIMS, np.random.default_rng(1))
    with open_store(tmp_path / "s", rows, rows.bytes() // 10) as store:
        mask = 1 << store.stage(delta)
        loaded = store.at

        def full(*_: object) -> None:
            raise StoreError("merging: No space left on device")

        for step in ("write", "ingest"):
            monkeypatch.setattr(SortedChanges, step, full)
            with pytest.raises(StoreError, match="No space"):
                store.merge(0, at=delta.snapshot, markers={"word": "new"})
            monkeypatch.undo()
            assert (store.at, store.marker("word")) == (loaded, None)
            look(store, tables, 0)
            look(store, applied(tables, delta), mask)

        def interrupt(step: str) -> None:
            if step == "merge_ingest":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.merge(0, at=delta.snapshot, on_step=interrupt)
        look(store, applied(tables, delta), mask)
        store.merge(0, at=delta.snapshot, markers={"word": "new"})
        assert (store.at, store.marker("word")) == (delta.snapshot, "new")
        look(store, applied(tables, delta), 0)
        assert list((tmp_path / "s" / "ingest").iterdir()) == []


def test_while_it_is_merged_an_overlay_cannot_be_discarded(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", make_rows(11), 200) as store:
        store.stage(delta_of("item", [5], 1))

        def discard(step: str) -> None:
            if step != "merge_drop":
                with pytest.raises(StoreError, match="is being merged"):
                    store.discard(0)

        store.merge(0, at="aa" * 16, on_step=discard)
        assert value_of(store, 5, 0) == 1


def test_at_every_step_of_a_merge_lookups_are_the_same(tmp_path: Path) -> None:
    rows = make_rows(12)
    tables = tables_of(rows)
    delta = make_delta(tables, DIMS, np.random.default_rng(3), most=200)
    for name, budget in budgets(rows).items():
        for spill in (False, True):
            with open_store(tmp_path / f"{name}{spill}", rows, budget) as store:
                mask = 1 << store.stage(delta, spill=spill)

                def again(_: str, store: TieredStore = store, mask: int = mask) -> None:
                    for seed in range(3):
                        look(store, applied(tables, delta), mask, seed)
                        store.drain()

                store.merge(0, at=delta.snapshot, on_step=again)


def test_complete_tables_stay_complete_while_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(13)
    room = 10 * 50
    tables = tables_of(rows)
    with open_store(tmp_path / "s", rows, rows.bytes() + room) as store:

        def merge(delta: Delta) -> None:
            nonlocal tables
            tables = applied(tables, delta)
            number = store.stage(delta)
            store.merge(number, at=delta.snapshot)
            look(store, tables, 0)

        held = rows.content["item"][0][:6].tolist()
        merge(delta_of("item", [*range(10_000, 10_008), *range(10_100, 10_106)], 1, gone=tuple(held)))
        assert store.is_complete(1)
        assert store.stats().rows["ssd"] == sum(map(len, tables.values()))
        merge(delta_of("item", [10_200, 10_201], 2))
        assert store.is_complete(1)
        merge(delta_of("item", [10_000, *range(10_300, 10_320)], 3))
        assert not store.is_complete(1)
        assert store.is_complete(0)
        for _ in range(5):
            look(store, tables, 0)
            store.drain()
        number = store.stage(delta_of("item", [], 4, gone=(10_000,)))
        store.merge(number, at="aa" * 16)  # room for one row
        for _ in range(5):
            store.plan([LookupSpec("x", "item")]).lookup(1, [jagged([list(range(10_300, 10_320))])])
            store.drain()
        sizes = [
            slab_bytes(spec.row_bytes, tier.size(), 1) for tier, spec in zip(store.dram, store.tables, strict=True)
        ]
        assert sum(sizes) <= rows.bytes() + room  # what is read does not pile up
        absent = [jagged([list(range(20_000, 20_040))])]
        plan = store.plan([LookupSpec("x", "item")])
        plan.lookup(1, absent)
        store.drain()
        asked: list[int] = []
        real = SsdReader.read

        def counted(self: SsdReader, wanted: Sequence[RowRead], timeout_s: float | None = None) -> None:
            asked.append(sum(map(len, wanted)))
            real(self, wanted, timeout_s)

        monkeypatch.setattr(SsdReader, "read", counted)
        assert plan.lookup(1, absent).counts.absent == 40
        assert sum(asked) <= 4  # they are remembered as absent now


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_reopened_store_goes_on_where_the_last_merge_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: str
) -> None:
    rows = make_rows(14)
    rng = np.random.default_rng(4)
    tables = tables_of(rows)
    folder = tmp_path / "s"
    bytes_ = budgets(rows)[budget]
    for turn in range(3):
        with open_store(folder, rows, bytes_) as store:
            look(store, tables, 0, turn)
            staged = make_delta(tables, DIMS, rng)
            store.merge(store.stage(staged), at=staged.snapshot, markers={"turn": str(turn), "other": None})
            tables = applied(tables, staged)
            store.stage(make_delta(tables, DIMS, rng), spill=True)  # lives in memory alone
        monkeypatch.setattr(SsdTier, "bulk_load", None)
        with open_store(folder, rows, bytes_) as store:
            assert store.at == staged.snapshot
            assert store.marker("turn") == str(turn)
            assert store.ssd.is_empty(SPILLS, MARKERS)
            look(store, tables, 0, turn)
            if budget == "all":
                assert store.stats().rows["ssd"] == sum(map(len, tables.values()))
        monkeypatch.undo()
    other = make_rows(15)
    other.content["user"] = rows.content["user"]  # its digest is right, but what SSD has was changed by merges
    with open_store(folder, other, bytes_) as store:
        assert store.at == other.snapshot
        look(store, tables_of(other), 0)
    with open_store(folder, rows, bytes_) as store:
        assert store.at == rows.snapshot
        look(store, tables_of(rows), 0)


def test_a_version_that_is_the_same_rows_is_adopted_and_nothing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_rows(16)
    tables = tables_of(rows)
    delta = make_delta(tables, DIMS, np.random.default_rng(5))
    same = rows_of(applied(tables, delta), DIMS)
    with open_store(tmp_path / "s", rows, 200) as store:
        with pytest.raises(StoreError, match="of its own"):
            store.adopt(same)
        store.merge(store.stage(delta), at=delta.snapshot)
        assert any(len(ids) for name in DIMS for ids in store._content.changed(name))
        same.equals = delta.snapshot
        store.adopt(same)
        assert same.reads == 0
        assert store.at == same.snapshot
        store.adopt(same)  # it is at the version itself now
        look(store, tables_of(same), 0)
    monkeypatch.setattr(SsdTier, "bulk_load", None)
    for _ in range(2):
        with open_store(tmp_path / "s", same, 200) as store:
            assert store.at == same.snapshot
            assert not any(len(ids) for name in DIMS for ids in store._content.changed(name))
            look(store, tables_of(same), 0)


def test_a_version_that_was_merged_as_a_delta_is_not_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_rows(20)
    delta = make_delta(tables_of(rows), DIMS, np.random.default_rng(6))
    version = rows_of(applied(tables_of(rows), delta), DIMS)
    with open_store(tmp_path / "s", rows, 200) as store:
        store.merge(store.stage(delta), at=version.snapshot)
    monkeypatch.setattr(SsdTier, "bulk_load", None)
    with open_store(tmp_path / "s", version, 200) as store:
        assert store.at == version.snapshot
        assert not any(len(ids) for ids in store._content.changed("item"))
        look(store, tables_of(version), 0)


def test_markers_are_the_callers_own(tmp_path: Path) -> None:
    rows = make_rows(17)
    with open_store(tmp_path / "s", rows, 200) as store:
        assert store.at == rows.snapshot
        store.set_markers({"at": "mine", "tables": "also mine", "gone": "x"})
        store.set_markers({"gone": None})
    with open_store(tmp_path / "s", rows, 200) as store:
        assert [store.marker(name) for name in ("at", "tables", "gone")] == ["mine", "also mine", None]
        assert store.at == rows.snapshot


def test_a_closed_store_gives_its_memory_back_and_says_so(tmp_path: Path) -> None:
    rows = make_rows(18)
    store = open_store(tmp_path / "s", rows, 200)
    plan = store.plan([ITEM])
    store.stage(delta_of("item", [5], 1))
    store.close()
    assert store.dram == []
    assert store.overlay_tables == []
    with pytest.raises(StoreError, match="closed"):
        plan.lookup(1, [jagged([[5]])])
    for call in (
        lambda: store.plan([ITEM]),
        lambda: store.stage(delta_of("item", [5], 1)),
        lambda: store.merge(0, at="aa" * 16),
        lambda: store.adopt(rows),
        lambda: store.discard(0),
        lambda: store.fingerprint(0, "item"),
        lambda: store.stats(),
        lambda: store.marker("x"),
    ):
        with pytest.raises(StoreError, match="closed"):
            call()


def test_plans_that_are_gone_are_counted_and_forgotten(tmp_path: Path) -> None:
    rows: Rows = make_rows(19)
    with open_store(tmp_path / "s", rows, None) as store:
        for _ in range(50):
            store.plan([ITEM]).lookup(1, [jagged([[int(rows.content["item"][0][0])]])])
        assert store.stats().hits["dram"] == 50
        assert len(store._plans) <= 1
