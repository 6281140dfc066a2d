"""A store with a cache on a card, which is simulated: the kernels' own code, streams and events in every order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from storage.errors import ConfigError, DeviceError, DeviceOutOfMemory, StoreError
from storage.features import Jagged
from storage.hbm.replica import bytes_of
from storage.specs import LookupSpec
from tests.hbm.world import ALL_BYTES, TABLES, CardWorld
from tests.simulated_gpu import SimulatedDriver, SimulatedGpus


@pytest.fixture
def card() -> Iterator[SimulatedDriver]:
    gpus = SimulatedGpus(schedule="random", seed=3)
    driver = gpus.driver(0)
    driver.enter_thread()
    yield driver
    if not driver.lost:
        driver.enter_thread()
        driver.finish()
    assert not driver.errors


def waits_for(what: object, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not what():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("row_type", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("pooling", ["none", "sum"])
def test_a_card_that_holds_everything_answers_everything(
    tmp_path: Path, card: SimulatedDriver, row_type: str, pooling: str
) -> None:
    world = CardWorld(tmp_path, card, row_type=row_type)
    assert world.look(pooling=pooling) == 1.0
    world.tier.check_integrity()
    stats = world.tier.stats()
    assert stats.rows == sum(table.rows for table in world.store.tables)
    assert stats.device_bytes <= ALL_BYTES
    world.close()


def test_a_small_card_holds_what_is_used_most(tmp_path: Path, card: SimulatedDriver) -> None:
    world = CardWorld(tmp_path, card, hbm_bytes=120_000)
    share = world.look()
    assert 0.05 < share < 0.6
    # The published frequencies fall with the distance from id 0.
    ids = world.rows.ids["item"]
    near = np.flatnonzero(
        (np.abs(ids.astype(np.float64)) < 60) & world.rows.expected(world.state, "item", np.arange(len(ids)))[1]
    )
    bags = Jagged(ids[near], np.arange(len(near) + 1))
    answer = world.lane.lookup(0, len(near), LookupSpec("item", "item", "none", 1), bags)
    assert answer is not None
    assert len(answer.missed) < len(near) / 5
    world.tier.check_integrity()
    world.close()


def test_what_is_asked_for_comes_in_and_what_is_not_used_goes(tmp_path: Path, card: SimulatedDriver) -> None:
    world = CardWorld(tmp_path, card, hbm_bytes=120_000)
    ids = world.rows.ids["item"]
    places = np.flatnonzero(world.rows.expected(world.state, "item", np.arange(len(ids)))[1])
    wanted = places[:200]  # far from 0, where nothing is used
    spec = LookupSpec("item", "item", "none", 1)
    bags = Jagged(ids[wanted], np.arange(len(wanted) + 1))

    def missed() -> int:
        answer = world.lane.lookup(0, len(wanted), spec, bags)
        assert answer is not None
        world.tell("item", wanted, wanted[answer.missed], others=20_000)
        return len(answer.missed)

    assert missed() > 100
    assert waits_for(lambda: missed() < 20), missed()
    assert world.tier.stats().evicted > 0
    world.tier.check_integrity()
    world.close()


def test_two_snapshots_are_answered_side_by_side_until_one_is_left(tmp_path: Path, card: SimulatedDriver) -> None:
    world = CardWorld(tmp_path, card)
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
        world.lane.lookup(
            before_mask, 1, LookupSpec("user", "user", "none", 1), Jagged(np.array([0]), np.array([0, 1]))
        )
        is None
    )
    world.store.merge(number, at=world.deltas[number].snapshot)
    assert world.look() >= share
    assert world.look(mask=0) >= share  # a mask after the merge has no bit for it
    world.tier.check_integrity()
    world.close()


def test_a_snapshot_that_nobody_announced_is_prepared_when_it_is_asked_for(
    tmp_path: Path, card: SimulatedDriver
) -> None:
    world = CardWorld(tmp_path, card)
    _, state, mask = world.stage()
    bags = Jagged(np.array([0]), np.array([0, 1]))
    assert world.lane.lookup(mask, 1, LookupSpec("user", "user", "none", 1), bags) is None
    assert waits_for(lambda: world.tier.is_prepared(mask))
    assert world.look(state, mask) > 0.7
    world.close()


def test_a_rollback_finds_the_old_rows_and_what_it_leaves_can_be_discarded(
    tmp_path: Path, card: SimulatedDriver
) -> None:
    world = CardWorld(tmp_path, card)
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


def test_an_overlay_that_is_merged_before_the_card_follows_leaves_no_old_row(
    tmp_path: Path, card: SimulatedDriver
) -> None:
    world = CardWorld(tmp_path, card)
    number, state, mask = world.stage()
    world.serve(state, mask)
    world.store.merge(number, at=world.deltas[number].snapshot)
    assert world.look() > 0.4
    world.tier.check_integrity()
    world.close()


def test_removed_ids_are_misses_and_return_when_they_are_written(tmp_path: Path, card: SimulatedDriver) -> None:
    world = CardWorld(tmp_path, card)
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


def test_a_difference_that_does_not_fit_is_answered_by_the_host(tmp_path: Path, card: SimulatedDriver) -> None:
    world = CardWorld(tmp_path, card, hbm_bytes=60_000)
    before, before_mask = world.state, world.mask
    _, state, mask = world.stage(one_in=1)  # every row is another one
    world.store.prepare(mask)
    world.look(before, before_mask)
    world.look(state, mask)
    world.tier.check_integrity()
    world.close()


def test_more_snapshots_than_the_card_has_numbers_for(tmp_path: Path, card: SimulatedDriver) -> None:
    world = CardWorld(tmp_path, card)
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


@pytest.mark.parametrize("hbm_bytes", [60_000, ALL_BYTES])
def test_another_size_while_lookups_go_on(tmp_path: Path, card: SimulatedDriver, hbm_bytes: int) -> None:
    world = CardWorld(tmp_path, card, hbm_bytes=200_000)
    before = world.look()
    taken = card.live_bytes["device"]
    world.store.cards.resize(0, hbm_bytes)
    assert world.store.cards.wait_filled(60)
    after = world.look()
    assert after < before if hbm_bytes < 200_000 else after == 1.0
    assert (card.live_bytes["device"] < taken) == (hbm_bytes < 200_000)
    world.tier.check_integrity()
    world.close()


def test_a_card_too_small_for_old_and_new_gives_up_the_old_first(tmp_path: Path) -> None:
    driver = SimulatedGpus(total_bytes=40 << 20).driver(0)
    driver.enter_thread()
    world = CardWorld(tmp_path, driver, hbm_bytes=6 << 20)
    driver.enter_thread()
    driver.fail_allocation(1)
    world.store.cards.resize(0, 2 << 20)
    assert world.store.cards.wait_filled(60)
    assert world.look() > 0.5
    world.close()


def test_without_memory_for_another_size_the_card_is_given_up_and_says_so(tmp_path: Path) -> None:
    driver = SimulatedGpus().driver(0)
    driver.enter_thread()
    world = CardWorld(tmp_path, driver, hbm_bytes=100_000)
    driver.info = replace(driver.info, total_bytes=driver.live_bytes["device"] + 50_000)
    with pytest.raises(DeviceOutOfMemory):
        world.store.cards.resize(0, ALL_BYTES)
    assert world.tier.trouble
    assert world.tier.replica is None
    spec = LookupSpec("user", "user", "none", 1)
    assert world.lane.lookup(0, 1, spec, Jagged(np.array([0]), np.array([0, 1]))) is None
    with pytest.raises(DeviceError, match="closed"):
        world.store.cards.resize(0, 100_000)
    world.close()


def test_a_lost_card_is_given_up_and_the_store_goes_on(tmp_path: Path) -> None:
    driver = SimulatedGpus().driver(0)
    driver.enter_thread()
    world = CardWorld(tmp_path, driver)
    driver.lose(after=3)
    number, state, mask = world.stage()
    world.store.prepare(mask)
    assert waits_for(lambda: world.tier.trouble)
    assert "lost" in world.tier.trouble
    world.serve(state, mask)
    world.store.merge(number, at=world.deltas[number].snapshot)
    assert world.tier.stats().rows == 0
    world.close()


def test_a_card_without_memory_is_a_clear_error_and_leaves_the_store_alone(tmp_path: Path) -> None:
    driver = SimulatedGpus(total_bytes=1 << 20).driver(0)
    driver.enter_thread()
    with pytest.raises(DeviceOutOfMemory):
        CardWorld(tmp_path / "small", driver, hbm_bytes=64 << 20)
    with pytest.raises(ConfigError, match="hbm_bytes"):
        CardWorld(tmp_path / "none", driver, hbm_bytes=0)


def test_what_was_hot_is_on_the_card_again_after_a_restart(tmp_path: Path, card: SimulatedDriver) -> None:
    size = 120_000
    world = CardWorld(tmp_path, card, hbm_bytes=size)
    ids = world.rows.ids["item"]
    wanted = np.flatnonzero(world.rows.expected(world.state, "item", np.arange(len(ids)))[1])[:200]
    spec = LookupSpec("item", "item", "none", 1)
    bags = Jagged(ids[wanted], np.arange(len(wanted) + 1))

    def missed() -> int:
        answer = world.lane.lookup(0, len(wanted), spec, bags)
        assert answer is not None
        world.tell("item", wanted, wanted[answer.missed], others=20_000)
        return len(answer.missed)

    assert waits_for(lambda: missed() < 20)
    world.close()
    world = CardWorld(tmp_path, card, hbm_bytes=size)
    assert missed() < 40
    world.close()


def test_a_card_that_holds_something_else_is_told(tmp_path: Path, card: SimulatedDriver) -> None:
    world = CardWorld(tmp_path, card)
    slab = world.tier.replica.slab(0)  # type: ignore[union-attr]
    slot = int(slab.cache.find(0, world.rows.ids["user"])[slab.cache.find(0, world.rows.ids["user"]) != 0][0])
    card.finish()
    slab.rows[slot * slab.stride] += 1
    with pytest.raises(StoreError, match="another row"):
        world.tier.check_integrity()
    slab.rows[slot * slab.stride] -= 1
    slab.lines[8] += 1
    with pytest.raises(StoreError, match="index"):
        world.tier.check_integrity()
    slab.lines[8] -= 1
    world.tier.check_integrity()
    world.close()


def test_a_budget_of_dram_leaves_the_card_as_it_is(tmp_path: Path, card: SimulatedDriver) -> None:
    world = CardWorld(tmp_path, card)
    world.store.set_dram_bytes(50_000)
    assert world.look() == 1.0
    world.tier.check_integrity()
    world.close()


def test_bytes_are_divided_among_row_sizes(tmp_path: Path, card: SimulatedDriver) -> None:
    world = CardWorld(tmp_path, card, hbm_bytes=200_000)
    replica = world.tier.replica
    assert replica is not None
    assert len(replica.slabs) == len(TABLES)
    for slab in replica.slabs:
        assert slab.cache.size() > 0
        assert slab.device_bytes <= bytes_of(slab.row_bytes, slab.cache.capacity_rows) * 1.02 + 1024
    assert replica.device_bytes <= 200_000 * 1.02
    world.close()
