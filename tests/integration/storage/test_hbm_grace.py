"""Nothing that a session inside may find is taken away, or becomes another row, before the session is out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage.hbm.gpus import gpus_of
from tests.simulated_gpu import SimulatedDriver
from tests.support.hbm.held import HeldSession, held_up
from tests.support.hbm.world import ALL_BYTES, TABLES, GpuWorld


@pytest.fixture
def world(tmp_path: Path, gpu: SimulatedDriver) -> GpuWorld:
    world = GpuWorld(tmp_path, gpu)
    world.quiet()
    return world


@pytest.mark.parametrize("table", list(TABLES))
def test_the_base_becomes_another_snapshots_when_no_session_looks_by_the_old_one(world: GpuWorld, table: str) -> None:
    _, state, mask = world.stage()
    world.store.prepare(mask)
    session = HeldSession(world, world.state, world.mask, table)
    assert world.answers(mask)  # asked for after the base's
    world.tier.settle_after_s = 0.0
    with held_up(world.tier.settle, session, least=0.8):
        assert not world.answers(world.mask)  # nobody is notified of it any more
        assert world.look(state, mask) > 0.6
    assert world.look(state, mask) > 0.6
    world.tier.check_integrity()
    world.close()


@pytest.mark.parametrize("table", list(TABLES))
def test_a_session_of_the_snapshot_that_becomes_the_base_finds_its_rows(world: GpuWorld, table: str) -> None:
    _, state, mask = world.stage()
    world.store.prepare(mask)
    session = HeldSession(world, state, mask, table)
    world.tier.settle_after_s = 0.0
    with held_up(world.tier.settle, session):
        pass
    assert world.look(state, mask) > 0.6
    world.close()


def test_a_merge_waits_for_sessions_of_the_base_that_has_the_overlay_not(world: GpuWorld) -> None:
    before = world.state
    number, state, mask = world.stage()
    world.store.prepare(mask)
    session = HeldSession(world, before, 0)
    assert world.answers(mask)
    world.serve(state, mask)
    with held_up(lambda: world.merge(number), session, least=0.8):
        assert number in world.store.overlay_stats()
    assert world.look() > 0.6
    world.tier.check_integrity()
    world.close()


def test_a_merge_without_a_difference_waits_for_sessions_of_the_base(world: GpuWorld) -> None:
    number, state, mask = world.stage()
    session = HeldSession(world, world.state, 0)
    world.serve(state, mask)
    # Before it waits, rows of the overlay leave the index: the session has those that are the same.
    with held_up(lambda: world.merge(number), session, least=0.3):
        assert number in world.store.overlay_stats()
    assert world.look() > 0.3
    world.tier.check_integrity()
    world.close()


def test_a_discard_waits_for_sessions_of_the_snapshot_that_goes(world: GpuWorld) -> None:
    number, state, mask = world.stage()
    world.store.prepare(mask)
    session = HeldSession(world, state, mask)
    with held_up(lambda: world.store.discard(number), session):
        assert number in world.store.overlay_stats()
    assert not world.answers(mask)
    assert world.look() > 0.8
    world.tier.check_integrity()
    world.close()


def test_a_discard_waits_for_sessions_of_the_base_that_goes(world: GpuWorld) -> None:
    first = world.state
    number, state, mask = world.stage()
    world.follow(state, mask)
    world.store.prepare(0)
    session = HeldSession(world, state, mask)
    assert world.answers(0)
    world.serve(first, 0)
    with held_up(lambda: world.store.discard(number), session):
        assert not world.answers(mask)
    assert world.look() > 0.6
    world.tier.check_integrity()
    world.close()


@pytest.mark.parametrize("table", list(TABLES))
def test_the_number_of_a_snapshot_is_another_ones_when_its_sessions_are_out(world: GpuWorld, table: str) -> None:
    staged = [world.stage(one_in=3 if number == 0 else 40) for number in range(9)]
    for _, _, mask in staged[:8]:
        world.store.prepare(mask)
    _, state, mask = staged[0]
    session = HeldSession(world, state, mask, table)
    for _, _, other in staged[1:8]:
        assert world.answers(other)
    _, last, last_mask = staged[8]
    world.tier.settle_after_s = 0.0
    with held_up(lambda: world.store.prepare(last_mask), session):
        assert not world.tier.is_prepared(last_mask)
    assert not world.answers(mask)
    assert world.look(last, last_mask) > 0.3
    world.tier.check_integrity()
    world.close()


def test_rows_take_the_place_of_others_when_no_session_can_hold_those(tmp_path: Path, gpu: SimulatedDriver) -> None:
    world = GpuWorld(tmp_path, gpu, hbm_bytes=120_000)
    world.quiet()
    ids = world.rows.ids["item"]
    places = np.flatnonzero(world.rows.expected(world.state, "item", np.arange(len(ids)))[1])
    wanted = ids[places[:200]]
    session = HeldSession(world, world.state, world.mask, "item")
    evicted = world.tier.stats().evicted
    admitted: list[int] = []
    hot = np.full(len(wanted), 255, np.uint8)
    with held_up(lambda: admitted.append(world.tier.install(1, wanted, hot)), session, least=0.05):
        pass
    assert admitted[0] > 50
    assert world.tier.stats().evicted > evicted
    assert world.look() > 0.05
    world.tier.check_integrity()
    world.close()


@pytest.mark.parametrize("both_fit", [True, False])
def test_another_size_waits_for_sessions_of_the_old_one(tmp_path: Path, gpu: SimulatedDriver, both_fit: bool) -> None:
    world = GpuWorld(tmp_path, gpu, hbm_bytes=200_000)
    world.quiet()
    assert world.tier.replica is not None
    old = world.tier.replica.device_bytes
    session = HeldSession(world, world.state, world.mask, "item")
    others = gpu.live_bytes["device"] - old
    if not both_fit:
        gpu.fail_allocation(1)
    with held_up(lambda: gpus_of(world.store).resize(0, ALL_BYTES), session):
        assert world.answers(world.mask) == both_fit
        assert gpu.live_bytes["device"] >= others + old
    replica = world.tier.replica
    assert replica is not None
    assert replica.device_bytes > old
    assert world.look() > 0.05
    world.tier.check_integrity()
    world.close()


def test_the_memory_of_a_gpu_is_given_back_when_the_sessions_are_out(tmp_path: Path, gpu: SimulatedDriver) -> None:
    world = GpuWorld(tmp_path, gpu, hbm_bytes=200_000)
    session = HeldSession(world, world.state, world.mask, "item")
    with held_up(lambda: gpus_of(world.store).close(0), session):
        assert not world.answers(world.mask)
    assert world.tier.replica is None
    world.close()
