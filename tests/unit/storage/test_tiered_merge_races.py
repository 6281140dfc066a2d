"""Reads, promotions and merges in every order that matters, forced one by one, then many at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import StoreError
from storage.specs import LookupSpec
from storage.tiers.cold_reads import ColdReads
from storage.tiers.dram_cache import DramCache
from storage.tiers.promoter import Promotion
from storage.tiers.ssd.reads import RowRead, SsdReader
from storage.tiers.ssd.sorted_changes import SortedChanges
from storage.tiers.ssd.tier import SsdTier
from storage.tiers.tiered import StoreLimits, TieredStore
from tests.support.storage.tier_rows import Delta, Rows, jagged, open_store

DIM = 4
CHANGED, ADDED, REMOVED = 5, 1000, 6
SPEC = LookupSpec("x", "t", "none", 1)


def planted(generation: int, ids: np.ndarray) -> np.ndarray:
    rows = np.full((len(ids), DIM), generation, np.float32)
    rows[:, 1] = ids % 1000
    return rows


def base(count: int = 100) -> Rows:
    ids = np.arange(count)
    return Rows({"t": (ids, planted(0, ids), np.zeros(count, np.uint8))})


def delta() -> Delta:
    ids = np.array([CHANGED, ADDED])
    return Delta("d" * 32, {"t": (ids, planted(1, ids))}, {"t": np.array([REMOVED])})


def answer(store: TieredStore, mask: int = 0) -> list[float | None]:
    ids = [CHANGED, ADDED, REMOVED]
    result = store.plan([SPEC]).lookup(3, [jagged([[i] for i in ids])], mask=mask)
    assert result.masks[0] is not None
    return [
        float(row[0, 0]) if found else None for row, found in zip(result.outputs[0], result.masks[0][:, 0], strict=True)
    ]


@pytest.fixture(params=[False, True], ids=["in memory", "spilled"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    # Nothing but SSD, and a cache that takes what is read once.
    rows = base()
    with TieredStore.open(tmp_path / "s", rows.tables, dram_bytes=1500) as store:
        store.load(rows)
        store.dram[0].erase(np.arange(100))
        assert store.stage(delta(), spill=request.param) == 0
        yield store


ASKED = np.array([CHANGED, ADDED, REMOVED])


def read_asked(store: TieredStore) -> np.ndarray:
    one = RowRead.of(store.cold_reads.number(0), ASKED, store.tables[0].row_bytes)
    store.cold_reads.read([one], None, None)
    return one.states


OLD, NEW = [0, None, 0], [1, 1, None]


def test_a_cache_of_old_rows_and_old_absent_ids_follows_a_merge(store: TieredStore) -> None:
    assert answer(store) == OLD
    store.drain()
    assert store.dram_cache.negative[0].contains(ASKED).tolist() == [False, True, False]
    assert store.dram[0].find(ASKED)[1].tolist() == [1, 0, 1]
    store.merge(0, at="d" * 32)
    assert answer(store) == NEW
    store.drain()
    assert answer(store) == NEW


def test_what_was_read_before_the_ingest_is_not_installed_after_it(
    store: TieredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SsdReader.read

    def read_then_merge(self: SsdReader, wanted: Sequence[RowRead], timeout_s: float | None = None) -> None:
        monkeypatch.undo()
        real(self, wanted, timeout_s)
        store.merge(0, at="d" * 32)

    monkeypatch.setattr(SsdReader, "read", read_then_merge)
    assert read_asked(store).tolist() == [1, 0, 1]
    store.drain()
    assert not store.dram_cache.negative[0].contains(ASKED).any()
    assert store.dram[0].find(ASKED)[1].tolist() == [0, 0, 0]
    assert answer(store) == NEW


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("before", [True, False])
def test_what_is_read_around_the_ingest_is_put_right_or_dropped(
    store: TieredStore, monkeypatch: pytest.MonkeyPatch, before: bool, late: bool
) -> None:
    """Reads rows beside the ingest of a merge, and promotes them.

    late: the promotion is installed only after the merge.
    """
    ingest, offer = SortedChanges.ingest, store._promoter.offer
    offered: list[Promotion] = []

    def read_around(self: SortedChanges) -> None:
        if not before:
            ingest(self)
        read_asked(store)
        store.drain()
        if before:
            ingest(self)

    monkeypatch.setattr(SortedChanges, "ingest", read_around)
    if late:
        monkeypatch.setattr(store._promoter, "offer", offered.append)
    store.merge(0, at="d" * 32)
    monkeypatch.undo()
    assert len(offered) == late
    for promotion in offered:
        offer(promotion)
    store.drain()
    assert answer(store) == NEW
    store.drain()
    assert answer(store) == NEW


@pytest.mark.parametrize("step", ["merge_file", "merge_ingest", "merge_dram", "merge_drop"])
def test_what_is_read_at_a_step_is_right_in_the_end(store: TieredStore, step: str) -> None:
    def read(at: str) -> None:
        if at == step:
            read_asked(store)
            store.drain()

    store.merge(0, at="d" * 32, on_step=read)
    assert answer(store) == NEW
    store.drain()
    assert answer(store) == NEW


@pytest.mark.parametrize("at_read", [False, True])
def test_a_merge_between_the_overlays_and_the_read_is_not_noticed(
    store: TieredStore, monkeypatch: pytest.MonkeyPatch, at_read: bool
) -> None:
    """Merges after a lookup has been given "missing" or "spilled", and before the lookup continues."""
    plan = store.plan([SPEC])
    owner, place = (ColdReads, "read") if at_read else (DramCache, "is_complete")
    real = getattr(owner, place)

    def merge_first(self: Any, *arguments: Any) -> Any:
        monkeypatch.undo()
        thread = threading.Thread(target=lambda: store.merge(0, at="d" * 32))
        thread.start()
        thread.join()
        return real(self, *arguments)

    monkeypatch.setattr(owner, place, merge_first)
    bags = [jagged([[i] for i in (CHANGED, ADDED, REMOVED, 7)])]
    result = plan.lookup(4, bags, mask=1)
    assert result.masks[0] is not None
    assert result.masks[0][:, 0].tolist() == [1, 1, 0, 1]
    assert result.outputs[0][:, 0, 0].tolist() == [1, 1, 0, 0]
    assert store.overlay_stats() == {}


@pytest.mark.parametrize("merged", [True, False])
def test_nothing_of_an_overlay_goes_while_a_lookup_is_inside(
    store: TieredStore, monkeypatch: pytest.MonkeyPatch, merged: bool
) -> None:
    """Drops an overlay, as far as possible, after a lookup has translated its mask and before it reads tables."""
    plan = store.plan([SPEC])
    native: Any = plan._lookup
    assert native is not None
    threads: list[threading.Thread] = []

    class Slow:
        def begin(self, *arguments: Any, **options: Any) -> int:
            drop = (lambda: store.merge(0, at="d" * 32)) if merged else (lambda: store.discard(0))
            threads.append(threading.Thread(target=drop, daemon=True))
            threads[0].start()
            while store.overlays.view.live:
                time.sleep(0.001)
            assert not threads[0].join(0.1)
            assert store.overlay_tables[0].size() == 3
            return native.begin(*arguments, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(native, name)

    monkeypatch.setattr(plan, "_lookup", Slow())
    spilled = [stats.spilled for stats in store.overlay_stats().values()] == [True]
    bags = [jagged([[i] for i in ASKED.tolist()])]
    if spilled and not merged:
        # The mask still shows what is discarded, and its rows on SSD go when the lookup is not inside any more.
        with contextlib.suppress(StoreError):
            assert plan.lookup(3, bags, mask=1).outputs[0][:, 0, 0].tolist() == [1, 1, 0]
        return
    result = plan.lookup(3, bags, mask=1)
    threads[0].join(30)
    assert result.masks[0] is not None
    assert result.masks[0][:, 0].tolist() == [1, 1, 0]
    assert result.outputs[0][:, 0, 0].tolist() == [1, 1, 0]
    assert store.overlay_tables[0].size() == 0


def test_spilled_rows_go_only_when_no_mask_shows_them(store: TieredStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = SsdTier.clear
    cleared: list[int] = []

    def clear(self: SsdTier, first: int, last: int | None = None) -> None:
        assert store.overlay_stats() == {}
        cleared.append(first)
        real(self, first, last)

    spilled = store.overlay_stats()[0].spilled
    monkeypatch.setattr(SsdTier, "clear", clear)
    store.merge(0, at="d" * 32)
    assert len(cleared) == spilled


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "spill"), [(None, False), (200_000, False), (20_000, False), (200, False), (20_000, True)]
)
def test_planted_rows_show_one_generation_in_every_answer(tmp_path: Path, budget: int | None, spill: bool) -> None:
    """Each delta changes all hot rows, and adds and removes some; a batch must see exactly one generation."""
    hot = np.concatenate([np.arange(0, 300, 7), [-(2**63), -1, 2**63 - 1]])
    hot.sort()
    cold = np.arange(10_000, 12_000)
    ids = np.sort(np.concatenate([hot, cold]))
    rows = Rows({"t": (ids, planted(0, ids), np.zeros(len(ids), np.uint8))}, shard_rows=1000)
    limits = StoreLimits(negative_ids=256)
    failures: list[BaseException] = []
    stop = threading.Event()
    in_use = {0: (0, 0)}  # reader -> (generation, mask) that it may look with
    current = (0, 0)
    lookups = [0]

    with open_store(tmp_path / "s", rows, budget, limits=limits) as store:

        def read(reader: int) -> None:
            nonlocal current
            plan = store.plan([SPEC, LookupSpec("y", "t", "sum")])
            rng = np.random.default_rng(reader)
            try:
                while not stop.is_set():
                    with switch:
                        in_use[reader] = current
                    generation, mask = in_use[reader]
                    strange = rng.integers(20_000, 20_050, 10)
                    near = [extra(generation), extra(generation + 1)]
                    asked = np.concatenate([hot, rng.choice(cold, 20), *near, strange])
                    bags = jagged([[i] for i in asked.tolist()])
                    result = plan.lookup(len(asked), [bags, bags], mask=mask)
                    lookups[0] += 1
                    flags = result.masks[0]
                    assert flags is not None
                    here = (asked < 0) | (asked < 20_000) | (asked > 2**60) | np.isin(asked, extra(generation))
                    want = planted(generation, asked)
                    want[np.isin(asked, cold)] = planted(0, asked[np.isin(asked, cold)])
                    want[~here] = 0
                    assert flags[:, 0].tolist() == here.astype(int).tolist()
                    np.testing.assert_array_equal(result.outputs[0][:, 0], want)
                    np.testing.assert_array_equal(result.outputs[1], want)
            except BaseException as error:
                failures.append(error)

        def extra(generation: int) -> np.ndarray:
            """Returns ids that only one generation has."""
            first = 30_000 + generation * 8
            return np.arange(first, first + 8 * (generation > 0))

        def next_delta(generation: int) -> Delta:
            changed = np.sort(np.concatenate([hot, extra(generation)]))
            rows = {"t": (changed, planted(generation, changed))}
            return Delta(f"{generation:032x}", rows, {"t": extra(generation - 1)})

        switch = threading.Lock()
        threads = [threading.Thread(target=read, args=(reader,)) for reader in range(3)]
        for thread in threads:
            thread.start()
        staged: list[tuple[int, int]] = []  # (overlay, generation), oldest first
        ends = time.monotonic() + 6
        generation = 0
        while time.monotonic() < ends and not failures:
            generation += 1
            number = store.stage(next_delta(generation), spill=spill)
            refused = store.stage(next_delta(generation + 1))  # never shown to anybody
            staged.append((number, generation))
            with switch:
                current = (generation, sum(1 << overlay for overlay, _ in staged))
            store.discard(refused)
            while len(staged) > 3:
                overlay, merged = staged[0]
                # The caller's duty: every mask in use shows it.
                while any((mask and not mask >> overlay & 1) or used < merged for used, mask in list(in_use.values())):
                    if failures:
                        break
                    time.sleep(0.001)
                store.merge(overlay, at=f"{merged:032x}")
                staged.pop(0)
        stop.set()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        assert generation > 5
        assert lookups[0] > 20
