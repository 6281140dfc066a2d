"""Overlays that are merged or discarded: a GPU knows of it until they are gone, whatever it does meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from storage.errors import StoreError
from storage.hbm.gpus import gpus_of
from tests.simulated_gpu import SimulatedDriver
from tests.support.hbm.world import GpuWorld


@pytest.fixture
def world(tmp_path: Path, gpu: SimulatedDriver) -> GpuWorld:
    """Returns a world without upkeep in the background."""
    world = GpuWorld(tmp_path, gpu)
    world.quiet()
    return world


@pytest.mark.parametrize("prepared", [True, False])
def test_a_snapshot_without_what_is_merged_is_not_on_the_gpu_any_more(world: GpuWorld, prepared: bool) -> None:
    number, state, mask = world.stage()
    world.follow(state, mask)
    _, second, second_mask = world.stage()
    world.follow(second, second_mask)
    if prepared:
        assert world.tier.prepare(0)
    refused: list[bool] = []
    world.merge(number, lambda _: refused.append(not world.tier.prepare(0)))
    assert len(refused) == 4
    assert all(refused)
    assert world.tier.stats().differences == 0
    world.store.prepare(mask)
    assert world.look(state, mask) > 0.5
    assert world.look(state, 0) > 0.5  # the same snapshot
    assert world.look() > 0.5
    world.look_on_the_host(state, mask)
    world.tier.check_integrity()
    world.close()


def test_differences_are_kept_only_where_they_say_of_a_merged_overlay_what_is_true(world: GpuWorld) -> None:
    # Two upon the same snapshot; the GPU follows the one that is not merged.
    state, delta = world.rows.change(world.state, 1, one_in=2)
    served = world.store.stage(delta)
    other_state, other_delta = world.rows.change(world.state, 2, one_in=2)
    other = world.store.stage(other_delta)
    before = world.state
    world.follow(other_state, 1 << other)
    world.store.prepare(0)
    assert world.look(before, 0) > 0.5
    world.store.merge(served, at=delta.snapshot)
    assert world.tier.stats().differences == 0
    world.store.prepare(1 << served)
    assert world.look(state, 1 << served) > 0.1
    world.look_on_the_host(state, 1 << served)
    world.tier.check_integrity()
    world.close()


def test_two_snapshots_are_discarded_the_oldest_first(world: GpuWorld) -> None:
    before = world.state
    first, state, mask = world.stage()
    world.follow(state, mask)
    second, later, later_mask = world.stage()
    world.store.prepare(later_mask)
    assert world.look(later, later_mask) > 0.5
    world.serve(before, 0)
    world.store.discard(first)
    world.store.discard(second)
    world.store.prepare(0)
    assert world.look() > 0.3
    assert world.install_all() > 100
    assert world.look() > 0.9
    world.tier.check_integrity()
    world.close()


@pytest.mark.parametrize("at_step", ["merge_file", "merge_ingest", "merge_dram", "merge_drop"])
def test_a_gpu_that_is_opened_during_a_merge_has_what_is_merged(world: GpuWorld, at_step: str) -> None:
    number, state, mask = world.stage()
    world.serve(state, mask)
    gpus_of(world.store).close(0)
    world.merge(number, lambda step: world.reopen() if step == at_step else None)
    world.device.enter_thread()
    assert world.look() > 0.8
    assert world.look(mask=0) > 0.8
    world.look_on_the_host(state, mask)
    world.tier.check_integrity()
    world.close()


def test_a_gpu_that_is_being_closed_is_reported_a_merge(
    tmp_path: Path, gpu: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = GpuWorld(tmp_path, gpu)
    number, state, mask = world.stage()
    world.serve(state, mask)
    saving, go_on = threading.Event(), threading.Event()

    def save(*_: object) -> None:
        saving.set()
        assert go_on.wait(60)

    monkeypatch.setattr("storage.hbm.worker.save_hot_ids", save)
    closing = threading.Thread(target=gpus_of(world.store).close, args=(0,))
    closing.start()
    try:
        assert saving.wait(60)
        world.merge(number)
        assert world.look() > 0.4  # sessions may ask as long as it is open
    finally:
        go_on.set()
        closing.join()
    assert not world.answers(mask)
    assert not gpus_of(world.store).tiers
    world.close()


def test_an_overlay_is_not_discarded_while_it_is_merged(world: GpuWorld) -> None:
    number, state, mask = world.stage()
    world.follow(state, mask)
    refused: list[str] = []

    def step(name: str) -> None:
        if name in ("merge_file", "merge_ingest", "merge_dram"):
            with pytest.raises(StoreError, match="being merged"):
                world.store.discard(number)
            refused.append(name)
            world.install_all()

    world.merge(number, step)
    assert len(refused) == 3
    assert world.look() > 0.9
    world.look_on_the_host(state, mask)
    world.tier.check_integrity()
    world.close()


def test_an_overlay_is_not_merged_while_it_is_discarded(world: GpuWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    before = world.state
    number, state, mask = world.stage()
    world.follow(state, mask)
    world.serve(before, 0)
    drop = world.store.overlays.drop
    refused: list[int] = []

    def dropped(*args: Any, **kwargs: Any) -> None:
        with pytest.raises(StoreError, match="being discarded"):
            world.merge(number)
        refused.append(number)
        world.install_all()
        drop(*args, **kwargs)

    monkeypatch.setattr(world.store.overlays, "drop", dropped)
    world.store.discard(number)
    assert refused
    assert not world.answers(mask)
    assert world.look() > 0.9
    world.look_on_the_host(before, 0)
    world.tier.check_integrity()
    world.close()
