"""A store with a cache on a GPU, which is simulated: the kernels' own code, streams and events in every order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from storage.errors import ConfigError, DeviceError, DeviceOutOfMemory, StoreError
from storage.features import Jagged
from storage.hbm.gpus import gpus_of
from storage.specs import LookupSpec
from tests.simulated_gpu import SimulatedDriver, SimulatedGpus
from tests.support.hbm.behaviour import (  # noqa: F401
    test_a_budget_of_dram_leaves_the_gpu_as_it_is,
    test_a_difference_that_does_not_fit_is_answered_by_the_host,
    test_a_gpu_that_holds_everything_answers_everything,
    test_a_rollback_finds_the_old_rows_and_what_it_leaves_can_be_discarded,
    test_a_small_gpu_holds_what_is_used_most,
    test_a_snapshot_that_nobody_announced_is_prepared_when_it_is_asked_for,
    test_an_overlay_that_is_merged_before_the_gpu_follows_leaves_no_old_row,
    test_bytes_are_divided_among_row_sizes,
    test_every_row_is_its_snapshots_own_under_everything_at_once,
    test_more_snapshots_than_the_gpu_has_numbers_for,
    test_removed_ids_are_misses_and_return_when_they_are_written,
    test_two_snapshots_are_answered_side_by_side_until_one_is_left,
    test_what_is_asked_for_comes_in_and_what_is_not_used_goes,
    test_what_was_hot_is_on_the_gpu_again_after_a_restart,
    waits_for,
)
from tests.support.hbm.world import ALL_BYTES, GpuWorld


@pytest.fixture
def device(gpu: SimulatedDriver) -> SimulatedDriver:
    return gpu


@pytest.mark.parametrize("hbm_bytes", [60_000, ALL_BYTES])
def test_another_size_while_lookups_go_on(tmp_path: Path, gpu: SimulatedDriver, hbm_bytes: int) -> None:
    world = GpuWorld(tmp_path, gpu, hbm_bytes=200_000)
    before = world.look()
    world.install_all()
    counted = world.tier.stats()
    assert counted.rejected + counted.evicted > 0
    taken = gpu.live_bytes["device"]
    gpus_of(world.store).resize(0, hbm_bytes)
    assert gpus_of(world.store).wait_filled(60)
    now = world.tier.stats()
    assert now.rejected >= counted.rejected
    assert now.evicted >= counted.evicted
    after = world.look()
    assert after < before if hbm_bytes < 200_000 else after == 1.0
    assert (gpu.live_bytes["device"] < taken) == (hbm_bytes < 200_000)
    world.tier.check_integrity()
    world.close()


def test_a_full_gpu_keeps_room_for_the_next_delta(tmp_path: Path, gpu: SimulatedDriver) -> None:
    world = GpuWorld(tmp_path, gpu, hbm_bytes=300_000)
    world.quiet()
    world.install_all()
    assert world.tier.replica is not None
    slabs = world.tier.replica.slabs
    assert all(slab.cache.free() == 0 for slab in slabs)
    went = []
    for _ in range(3):
        before = world.tier.stats().evicted
        _, state, mask = world.stage(one_in=16)
        world.follow(state, mask)
        went.append(world.tier.stats().evicted - before)
        world.install_all()
        assert all(slab.cache.free() == 0 < slab.cache.reserved for slab in slabs)
    assert went[0] > 20
    assert max(went[1:]) < went[0] / 4
    world.tier.check_integrity()
    world.close()


def test_a_gpu_too_small_for_old_and_new_gives_up_the_old_first(tmp_path: Path) -> None:
    driver = SimulatedGpus(total_bytes=40 << 20).driver(0)
    driver.enter_thread()
    world = GpuWorld(tmp_path, driver, hbm_bytes=6 << 20)
    driver.enter_thread()
    driver.fail_allocation(1)
    gpus_of(world.store).resize(0, 2 << 20)
    assert gpus_of(world.store).wait_filled(60)
    assert world.look() > 0.5
    world.close()


def test_without_memory_for_another_size_the_gpu_is_given_up_and_says_so(tmp_path: Path) -> None:
    driver = SimulatedGpus().driver(0)
    driver.enter_thread()
    world = GpuWorld(tmp_path, driver, hbm_bytes=100_000)
    world.install_all()
    rejected = world.tier.stats().rejected
    driver.info = replace(driver.info, total_bytes=driver.live_bytes["device"] + 50_000)
    with pytest.raises(DeviceOutOfMemory):
        gpus_of(world.store).resize(0, ALL_BYTES)
    assert world.tier.trouble
    assert world.tier.replica is None
    assert world.tier.stats().rejected >= rejected > 0
    spec = LookupSpec("user", "user", "none", 1)
    assert world.session.lookup(0, 1, spec, Jagged(np.array([0]), np.array([0, 1]))) is None
    with pytest.raises(DeviceError, match="closed"):
        gpus_of(world.store).resize(0, 100_000)
    world.close()


def test_a_lost_gpu_is_given_up_and_the_store_goes_on(tmp_path: Path) -> None:
    driver = SimulatedGpus().driver(0)
    driver.enter_thread()
    world = GpuWorld(tmp_path, driver)
    driver.lose(after=3)
    number, state, mask = world.stage()
    world.store.prepare(mask)
    assert waits_for(lambda: world.tier.trouble)
    assert "lost" in world.tier.trouble
    world.serve(state, mask)
    world.store.merge(number, at=world.deltas[number].snapshot)
    assert world.tier.stats().rows == 0
    world.close()


def test_kernels_that_do_not_compile_are_a_clear_error(tmp_path: Path) -> None:
    driver = SimulatedGpus().driver(0)
    driver.refuse_kernels = True
    with pytest.raises(DeviceError, match="compiles"):
        GpuWorld(tmp_path, driver)


def test_a_gpu_without_memory_is_a_clear_error_and_leaves_the_store_alone(tmp_path: Path) -> None:
    driver = SimulatedGpus(total_bytes=1 << 20).driver(0)
    driver.enter_thread()
    with pytest.raises(DeviceOutOfMemory):
        GpuWorld(tmp_path / "small", driver, hbm_bytes=64 << 20)
    with pytest.raises(ConfigError, match="hbm_bytes"):
        GpuWorld(tmp_path / "none", driver, hbm_bytes=0)


def test_a_gpu_that_holds_something_else_is_reported(tmp_path: Path, gpu: SimulatedDriver) -> None:
    world = GpuWorld(tmp_path, gpu)
    slab = world.tier.replica.slab(0)  # type: ignore[union-attr]
    slot = int(slab.cache.find(0, world.rows.ids["user"])[slab.cache.find(0, world.rows.ids["user"]) != 0][0])
    gpu.finish()
    slab.rows[slot * slab.stride] += 1
    with pytest.raises(StoreError, match="another row"):
        world.tier.check_integrity()
    slab.rows[slot * slab.stride] -= 1
    slab.buckets[8] += 1
    with pytest.raises(StoreError, match="index"):
        world.tier.check_integrity()
    slab.buckets[8] -= 1
    world.tier.check_integrity()
    world.close()


def test_it_says_which_ids_are_on_the_gpu(tmp_path: Path, gpu: SimulatedDriver) -> None:
    world = GpuWorld(tmp_path, gpu, hbm_bytes=200_000)
    world.quiet()
    world.install_all()
    strangers = np.array([10**9, -(10**9)])
    for name, ids in world.rows.ids.items():
        listed = world.tier.hot_ids(10**6)[name].ids
        assert np.isin(ids, listed).tolist() == world.tier.has(name, ids).tolist()
        assert not world.tier.has(name, strangers).any()
    world.close()
    assert not world.tier.has("user", strangers).any()
