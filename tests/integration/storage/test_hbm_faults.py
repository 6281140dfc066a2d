"""A GPU beside what goes wrong, and beside what a store does at the same moment: it answers with its snapshot's rows,
or not at all.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import DeviceError, DeviceOutOfMemory, StoreError
from storage.features import Jagged
from storage.hbm.gpus import gpus_of
from storage.hbm.readers import Turns
from storage.hbm.replica import Replica
from storage.hbm.tier import HbmTier
from storage.hbm.worker import HbmWorker
from storage.specs import LookupSpec
from storage.tiers.hot_ids import HOT_IDS_HBM, load_hot_ids
from storage.tiers.lookup_plan import LookupPlan
from tests.simulated_gpu import SimulatedDriver, SimulatedGpus
from tests.support.hbm.behaviour import waits_for
from tests.support.hbm.world import ALL_BYTES, TABLES, GpuWorld


@pytest.fixture
def world(tmp_path: Path, gpu: SimulatedDriver) -> GpuWorld:
    """Returns a world without upkeep in the background."""
    world = GpuWorld(tmp_path, gpu)
    world.quiet()
    return world


def once(error: Exception, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that raises the error at its first call."""
    errors = [error]

    def call(*args: Any, **kwargs: Any) -> Any:
        if errors:
            raise errors.pop()
        return function(*args, **kwargs)

    return call


# Rows that were looked up before.


@pytest.mark.parametrize("meanwhile", ["settle", "merge", "discard"])
def test_rows_that_were_looked_up_before_the_base_changed_stay_out(
    tmp_path: Path, gpu: SimulatedDriver, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    world = GpuWorld(tmp_path, gpu, hbm_bytes=120_000)
    world.quiet()
    before = world.state
    number, state, mask = world.stage(one_in=2)
    if meanwhile == "discard":
        world.follow(state, mask)
    find, changes = world.tier._rows.find, [meanwhile]

    def found(*args: Any) -> Any:
        rows = find(*args)
        if changes:
            {
                "settle": lambda: world.follow(state, mask),
                "merge": lambda: world.merge(number),
                "discard": lambda: world.store.discard(number),
            }[changes.pop()]()
        return rows

    monkeypatch.setattr(world.tier._rows, "find", found)
    ids = world.rows.ids["item"]
    assert world.tier.install(1, ids, np.full(len(ids), 255, np.uint8)) == 0
    assert not changes
    world.serve(*((before, 0) if meanwhile == "discard" else (state, mask)))
    assert world.look() > 0.03
    world.tier.check_integrity()
    world.close()


def test_what_a_difference_says_something_of_is_not_taken_in_beneath_it(tmp_path: Path, gpu: SimulatedDriver) -> None:
    world = GpuWorld(tmp_path, gpu, hbm_bytes=120_000)
    world.quiet()
    _, state, mask = world.stage(one_in=2)
    world.store.prepare(mask)
    assert world.install_all() > 0
    assert world.look(state, mask) > 0.05
    assert world.look() > 0.05
    world.tier.check_integrity()
    world.close()


def test_rows_from_tables_that_a_first_budget_let_go_stay_out(
    tmp_path: Path, gpu: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = GpuWorld(tmp_path, gpu, hbm_bytes=120_000)
    world.quiet()
    number, state, mask = world.stage(one_in=2)
    world.follow(state, mask)
    lookup, budgets = LookupPlan.lookup, [80_000]

    def after_a_budget(plan: LookupPlan, *args: Any, **kwargs: Any) -> Any:
        if budgets:
            world.store.set_dram_bytes(budgets.pop())
            world.merge(number)
        return lookup(plan, *args, **kwargs)

    monkeypatch.setattr(LookupPlan, "lookup", after_a_budget)
    ids = world.rows.ids["item"]
    world.tier.install(1, ids, np.full(len(ids), 255, np.uint8))
    assert not budgets
    assert world.look() > 0.03
    world.look_on_the_host(state, mask)
    world.tier.check_integrity()
    world.close()


# What fails.


@pytest.mark.parametrize("part", ["rows", "stores", "grace"])
def test_a_change_that_breaks_off_gives_the_gpu_up(world: GpuWorld, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    broken = MemoryError("none is left")
    place: tuple[Any, str] = {
        "rows": (world.tier._publisher, "_put_rows"),
        "stores": (world.tier._publisher, "_put_stores"),
        "grace": (world.tier._turns, "wait"),
    }[part]
    number, state, mask = world.stage()
    monkeypatch.setattr(*place, once(broken, getattr(*place)))
    with pytest.raises(MemoryError):
        world.store.prepare(mask)
    assert world.tier.trouble == "none is left"
    assert world.tier.replica is None
    assert not world.answers(0)
    world.store.prepare(mask)
    assert not world.answers(mask)
    world.tier.check_integrity()
    world.merge(number)
    world.look_on_the_host(state, mask)
    world.close()


@pytest.mark.parametrize("error", [MemoryError("none is left"), StoreError("the disk failed")])
def test_half_a_difference_is_never_a_part_of_another_one(
    world: GpuWorld, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    state, delta = world.rows.change(world.state, 1, one_in=2)
    first = world.store.stage(delta)
    later, later_delta = world.rows.change(world.state, 2, one_in=7)
    second = world.store.stage(later_delta)
    take = world.tier._rows.take

    def failing(mask: int, table: int, *args: Any) -> Any:
        if table == len(TABLES) - 1:
            raise error
        return take(mask, table, *args)

    monkeypatch.setattr(world.tier._rows, "take", failing)
    with pytest.raises(type(error)):
        world.store.prepare(1 << first)
    monkeypatch.undo()
    world.store.prepare(1 << second)
    if isinstance(error, StoreError):
        assert world.look(later, 1 << second) > 0.5
        world.tier.check_integrity()
    else:
        assert world.tier.trouble
        assert not world.answers(1 << second)
    world.look_on_the_host(state, 1 << first)
    world.close()


def test_the_gpu_is_given_up_when_nothing_of_it_is_on_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimulatedGpus(schedule="lazy").driver(0)
    device.enter_thread()
    world = GpuWorld(tmp_path, device)
    world.quiet()
    monkeypatch.setattr(device, "zero", once(DeviceOutOfMemory("none is left"), device.zero))
    world.tier.read_marks()
    assert world.tier.trouble == "none is left"
    assert not world.answers(0)
    gc.collect()
    device.enter_thread()
    device.finish()
    assert not device.errors
    world.close()


def test_upkeep_goes_on_after_an_error_of_any_kind(
    tmp_path: Path, gpu: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HbmTier, "fill", once(MemoryError("none is left"), HbmTier.fill))
    world = GpuWorld(tmp_path, gpu)  # returns when the filling is over, somehow
    rounds: list[Exception] = []

    def failing() -> int:
        rounds.append(ValueError(f"round {len(rounds)}"))
        raise rounds[-1]

    monkeypatch.setattr(world.tier, "admit_offers", failing)
    assert waits_for(lambda: len(rounds) > 3)
    assert gpus_of(world.store).wait_filled(0)
    assert not world.tier.trouble
    world.close()


def test_masks_that_the_store_refuses_the_gpu_refuses_too(world: GpuWorld) -> None:
    number, _, mask = world.stage()
    world.store.prepare(mask)
    world.store.discard(number)
    plan = world.store.plan([LookupSpec("user", "user", "none", 1)])
    for wrong in (mask, 1 << 40, -1):
        assert not world.answers(wrong)
        assert not world.tier.is_prepared(wrong)
        assert not world.tier.prepare_asked()
        with pytest.raises(StoreError):
            plan.lookup(1, [Jagged(np.array([0]), np.array([0, 1]))], mask=wrong)
        with pytest.raises(StoreError):
            world.store.prepare(wrong)
    assert not world.tier.trouble
    assert world.look() > 0.9
    world.close()


def test_another_version_is_not_loaded_under_a_gpu(world: GpuWorld) -> None:
    state, _ = world.rows.change(world.state, 1, one_in=2)
    with pytest.raises(StoreError, match="load"):
        world.store.load(world.rows.version(state))
    assert world.look() == 1.0
    world.close()


# Sessions.


def test_a_session_that_is_no_more_is_not_waited_for(world: GpuWorld) -> None:
    reader = world.tier.reader()
    assert reader.enter(0) is not None
    del reader
    gc.collect()
    number, state, mask = world.stage()
    world.follow(state, mask)
    world.merge(number)
    assert world.look() > 0.5
    world.close()


def test_a_session_that_never_comes_out_costs_the_gpu_and_nothing_else(
    world: GpuWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Turns.wait
    monkeypatch.setattr(Turns, "wait", lambda turns: wait(turns, 0.05))
    stuck = world.tier.reader()
    assert stuck.enter(0) is not None
    number, state, mask = world.stage()
    world.merge(number)
    assert "has not ended" in world.tier.trouble
    assert not world.answers(mask)
    world.look_on_the_host(state, mask)
    world.close()


def test_a_snapshot_that_was_just_prepared_is_not_the_first_to_go(world: GpuWorld) -> None:
    masks = [1 << world.stage(one_in=40)[0] for _ in range(10)]
    for mask in masks[:8]:
        world.store.prepare(mask)
        assert world.answers(mask)
    world.tier.settle_after_s = 0.0
    for mask in masks[8:]:
        world.store.prepare(mask)
    assert [world.tier.is_prepared(mask) for mask in masks] == [False] * 2 + [True] * 8
    world.close()


# Sizes and lists.


@pytest.mark.parametrize("busy", [False, True])
def test_a_gpu_with_room_for_one_of_both_sizes(
    tmp_path: Path, gpu: SimulatedDriver, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    world = GpuWorld(tmp_path, gpu, hbm_bytes=200_000)
    world.quiet()
    world.look()  # the session has its buffers
    assert world.tier.replica is not None
    others = gpu.live_bytes["device"] - world.tier.replica.device_bytes
    new = Replica(gpu, world.store.tables, 500_000).device_bytes
    gpu.info = replace(gpu.info, total_bytes=others + new + 30_000)
    find, looking, go_on = world.tier._rows.find, threading.Event(), threading.Event()

    def slow(*args: Any) -> Any:
        if threading.current_thread() is installing:
            looking.set()
            assert go_on.wait(60)
        return find(*args)

    installing = threading.Thread(target=world.install_all)
    monkeypatch.setattr(world.tier._rows, "find", slow)
    if busy:
        installing.start()
        assert looking.wait(60)
    try:
        gpus_of(world.store).resize(0, 500_000)
    finally:
        go_on.set()
        if busy:
            installing.join()
    assert not world.tier.trouble
    assert world.tier.stats().device_bytes == new
    assert world.look() > 0.1
    world.tier.check_integrity()
    world.close()


def test_a_list_of_hot_ids_stays_when_the_gpu_was_never_filled(
    tmp_path: Path, gpu: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    GpuWorld(tmp_path, gpu).close()
    list_of_gpu = tmp_path / f"{HOT_IDS_HBM}_0"
    saved = list_of_gpu.read_bytes()
    monkeypatch.setattr(HbmWorker, "_fill", lambda _: False)
    world = GpuWorld(tmp_path, gpu, filled=False)
    assert not gpus_of(world.store).wait_filled(0)
    world.close()
    assert list_of_gpu.read_bytes() == saved


def test_two_gpus_write_a_list_each(tmp_path: Path) -> None:
    gpus = SimulatedGpus(count=2)
    first, second = gpus.driver(0), gpus.driver(1)
    first.enter_thread()
    world = GpuWorld(tmp_path, first)
    second.enter_thread()
    gpus_of(world.store).open(second, 100_000)
    assert gpus_of(world.store).wait_filled(60)
    rows = [tier.stats().rows for tier in gpus_of(world.store).tiers.values()]
    world.close()
    lists = [load_hot_ids(tmp_path, 10**6, f"{HOT_IDS_HBM}_{index}") for index in range(2)]
    assert [sum(len(hot.ids) for hot in each.values()) for each in lists] == rows
    assert rows[1] < rows[0] / 2


def test_a_closed_store_opens_no_gpu(world: GpuWorld) -> None:
    world.close()
    with pytest.raises((StoreError, DeviceError), match="closed"):
        gpus_of(world.store).open(world.device, ALL_BYTES)
