"""Tests the behaviour of a store with a cache on a GPU, whether simulated or real.

A module of tests imports all of this and has a fixture `device`, a GPU that the thread has entered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage.features import Jagged
from storage.hbm.device import Device
from storage.hbm.replica import bytes_of
from storage.specs import LookupSpec
from tests.soak.hbm import HbmSoak
from tests.support.hbm.world import ALL_BYTES, TABLES, GpuWorld

SOAK_S = 12.0


def waits_for(what: Callable[[], object], seconds: float = 90.0) -> bool:
    """Waits for a condition; returns whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("row_type", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("pooling", ["none", "sum"])
def test_a_gpu_that_holds_everything_answers_everything(
    tmp_path: Path, device: Device, row_type: str, pooling: str
) -> None:
    world = GpuWorld(tmp_path, device, row_type=row_type)
    assert world.look(pooling=pooling) == 1.0
    world.tier.check_integrity()
    stats = world.tier.stats()
    assert stats.rows == sum(table.rows for table in world.store.tables)
    assert stats.device_bytes <= ALL_BYTES
    world.close()


def test_a_small_gpu_holds_what_is_used_most(tmp_path: Path, device: Device) -> None:
    world = GpuWorld(tmp_path, device, hbm_bytes=120_000)
    share = world.look()
    assert 0.05 < share < 0.6
    # The published frequencies fall with the distance from id 0.
    ids = world.rows.ids["item"]
    near = np.flatnonzero(
        (np.abs(ids.astype(np.float64)) < 60) & world.rows.expected(world.state, "item", np.arange(len(ids)))[1]
    )
    bags = Jagged(ids[near], np.arange(len(near) + 1))
    answer = world.session.lookup(0, len(near), LookupSpec("item", "item", "none", 1), bags)
    assert answer is not None
    assert len(answer.missed) < len(near) / 5
    world.tier.check_integrity()
    world.close()


def test_what_is_asked_for_comes_in_and_what_is_not_used_goes(tmp_path: Path, device: Device) -> None:
    world = GpuWorld(tmp_path, device, hbm_bytes=120_000)
    ids = world.rows.ids["item"]
    places = np.flatnonzero(world.rows.expected(world.state, "item", np.arange(len(ids)))[1])
    wanted = places[:200]  # far from 0, where nothing is used
    assert world.ask("item", wanted) > 100
    assert waits_for(lambda: world.ask("item", wanted) < 20)
    assert world.tier.stats().evicted > 0
    world.tier.check_integrity()
    world.close()


def test_two_snapshots_are_answered_side_by_side_until_one_is_left(tmp_path: Path, device: Device) -> None:
    world = GpuWorld(tmp_path, device)
    before, before_mask = world.state, world.mask
    number, state, mask = world.stage(one_in=10)
    assert not world.tier.is_prepared(mask)
    world.store.prepare(mask)
    assert world.tier.is_prepared(mask)
    assert world.tier.is_prepared(before_mask)
    assert world.look(before, before_mask) == 1.0
    share = world.look(state, mask)
    assert share > 0.7  # new ids are not there yet
    world.serve(state, mask)
    assert waits_for(lambda: world.look() > 0 and world.tier.stats().differences == 0)
    assert world.look() >= share
    assert (
        world.session.lookup(
            before_mask, 1, LookupSpec("user", "user", "none", 1), Jagged(np.array([0]), np.array([0, 1]))
        )
        is None
    )
    world.store.merge(number, at=world.deltas[number].snapshot)
    assert world.look() >= share
    assert world.look(mask=0) >= share  # a mask after the merge has no bit for it
    world.tier.check_integrity()
    world.close()


def test_a_snapshot_that_nobody_announced_is_prepared_when_it_is_asked_for(tmp_path: Path, device: Device) -> None:
    world = GpuWorld(tmp_path, device)
    _, state, mask = world.stage()
    bags = Jagged(np.array([0]), np.array([0, 1]))
    assert world.session.lookup(mask, 1, LookupSpec("user", "user", "none", 1), bags) is None
    assert waits_for(lambda: world.tier.is_prepared(mask))
    assert world.look(state, mask) > 0.7
    world.close()


def test_a_rollback_finds_the_old_rows_and_what_it_leaves_can_be_discarded(tmp_path: Path, device: Device) -> None:
    world = GpuWorld(tmp_path, device)
    first, first_mask = world.state, world.mask
    number, state, mask = world.stage()
    world.store.prepare(mask)
    world.serve(state, mask)
    assert waits_for(lambda: world.look() > 0 and world.tier.stats().differences == 0)
    world.store.prepare(first_mask)
    assert world.look(first, first_mask) > 0.5
    assert world.look(state, mask) > 0.7
    world.serve(first, first_mask)
    world.store.discard(number)  # the base still has its rows
    assert waits_for(lambda: world.tier.is_prepared(first_mask))
    assert world.look() > 0.5
    world.tier.check_integrity()
    world.close()


def test_an_overlay_that_is_merged_before_the_gpu_follows_leaves_no_old_row(tmp_path: Path, device: Device) -> None:
    world = GpuWorld(tmp_path, device)
    number, state, mask = world.stage()
    world.serve(state, mask)
    world.store.merge(number, at=world.deltas[number].snapshot)
    assert world.look() > 0.4
    world.tier.check_integrity()
    world.close()


def test_removed_ids_are_misses_and_return_when_they_are_written(tmp_path: Path, device: Device) -> None:
    world = GpuWorld(tmp_path, device)
    for _ in range(4):
        number, state, mask = world.stage(one_in=2)
        world.store.prepare(mask)
        assert world.look(state, mask) > 0.3
        world.serve(state, mask)
        assert waits_for(lambda: world.look() > 0 and world.tier.stats().differences == 0)
        world.store.merge(number, at=world.deltas[number].snapshot)
        world.look()
    world.tier.check_integrity()
    world.close()


def test_a_difference_that_does_not_fit_is_answered_by_the_host(tmp_path: Path, device: Device) -> None:
    world = GpuWorld(tmp_path, device, hbm_bytes=60_000)
    before, before_mask = world.state, world.mask
    _, state, mask = world.stage(one_in=1)  # every row is another one
    world.store.prepare(mask)
    world.look(before, before_mask)
    world.look(state, mask)
    world.tier.check_integrity()
    world.close()


def test_more_snapshots_than_the_gpu_has_numbers_for(tmp_path: Path, device: Device) -> None:
    world = GpuWorld(tmp_path, device)
    snapshots = [(world.state, world.mask)]
    for _ in range(10):
        _, state, mask = world.stage(one_in=30)
        snapshots.append((state, mask))
        world.serve(state, mask)
        world.store.prepare(mask)
    answered = 0
    for state, mask in snapshots:
        if world.tier.is_prepared(mask):
            answered += 1
            assert world.look(state, mask) > 0.2
    assert 2 <= answered <= 9
    world.close()


def test_what_was_hot_is_on_the_gpu_again_after_a_restart(tmp_path: Path, device: Device) -> None:
    size = 120_000
    world = GpuWorld(tmp_path, device, hbm_bytes=size)
    ids = world.rows.ids["item"]
    wanted = np.flatnonzero(world.rows.expected(world.state, "item", np.arange(len(ids)))[1])[:200]
    assert waits_for(lambda: world.ask("item", wanted) < 20)
    world.close()
    world = GpuWorld(tmp_path, device, hbm_bytes=size)
    assert world.ask("item", wanted) < 40
    world.close()


def test_a_budget_of_dram_leaves_the_gpu_as_it_is(tmp_path: Path, device: Device) -> None:
    world = GpuWorld(tmp_path, device)
    world.store.set_dram_bytes(50_000)
    assert world.look() == 1.0
    world.tier.check_integrity()
    world.close()


def test_bytes_are_divided_among_row_sizes(tmp_path: Path, device: Device) -> None:
    world = GpuWorld(tmp_path, device, hbm_bytes=200_000)
    replica = world.tier.replica
    assert replica is not None
    assert len(replica.slabs) == len(TABLES)
    for slab in replica.slabs:
        assert slab.cache.size() > 0
        assert slab.device_bytes <= bytes_of(slab.row_bytes, slab.cache.capacity_rows) * 1.02 + 1024
    assert replica.device_bytes <= 200_000 * 1.02
    world.close()


@pytest.mark.slow
def test_every_row_is_its_snapshots_own_under_everything_at_once(tmp_path: Path, device: Device) -> None:
    soak = HbmSoak(tmp_path / "store", device, row_type="int8")
    wanted = ("GPU lookups", "GPU rows", "deltas", "merges", "rollbacks", "reopened", "resized", "GPU checks")
    soak.run(SOAK_S, wanted)
    for what in wanted:
        assert soak.counts[what] > 0, f"no {what}: {soak.counts}"
