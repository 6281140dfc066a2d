"""Tests GPUs that share rows, whether simulated or real: hot rows on each, cold ones on one of them.

A module of tests imports all of this and has a fixture `devices`, two GPUs, the first of which the thread has entered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from storage.features import Jagged
from storage.hbm.device import Device
from storage.hbm.gpus import gpus_of
from storage.hbm.sharing import sharing_of
from storage.hbm.visibility import VisibleSnapshot
from storage.specs import LookupSpec
from tests.soak.hbm import HbmSoak
from tests.support.hbm.behaviour import SOAK_S, waits_for
from tests.support.hbm.held import HeldSession, held_up
from tests.support.hbm.session import GpuLookupSession
from tests.support.hbm.world import ROWS, TABLES, GpuWorld

# On each of two GPUs: more than half of all rows with their spare, fewer than all.
HALF_BYTES = 460_000
ITEM = list(TABLES).index("item")


def of_part(world: GpuWorld, part: int, table: str = "item") -> np.ndarray:
    """Returns the places of the ids that belong to a GPU's part and have a row."""
    placement = sharing_of(world.store).placement
    assert placement is not None
    there = world.rows.expected(world.state, table, np.arange(len(world.rows.ids[table])))[1]
    return np.flatnonzero(there & (placement.parts(list(TABLES).index(table), world.rows.ids[table]) == part))


def resident(world: GpuWorld, gpu: int, places: np.ndarray) -> np.ndarray:
    """Returns which of some items a GPU itself has."""
    replica = world.tiers[gpu].replica
    assert replica is not None
    return np.asarray(replica.slab(ITEM).cache.find(ITEM, world.rows.ids["item"][places]) != 0)


def use(world: GpuWorld, places: np.ndarray) -> int:
    """Looks up items on the first GPU and reports them as a session does, with all of them as the sample.

    Returns the misses.
    """
    ids = world.rows.ids["item"][places]
    answer = world.session.lookup(
        world.mask, len(ids), LookupSpec("item", "item", "none", 1), Jagged(ids, np.arange(len(ids) + 1))
    )
    assert answer is not None
    lookups, misses = np.zeros(len(TABLES), np.uint64), np.zeros(len(TABLES), np.uint64)
    lookups[ITEM], misses[ITEM] = len(ids) + 20_000, len(answer.missed)
    sharing_of(world.store).tell(world.tier, lookups, misses, [(ITEM, ids[answer.missed])], [(ITEM, ids)])
    return len(answer.missed)


@pytest.mark.parametrize("row_type", ["fp32", "int8"])
@pytest.mark.parametrize("pooling", ["none", "sum"])
def test_cold_rows_are_on_one_gpu_and_every_gpu_finds_them(
    tmp_path: Path, devices: Sequence[Device], row_type: str, pooling: str
) -> None:
    size = HALF_BYTES if row_type == "fp32" else HALF_BYTES // 2
    world = GpuWorld(tmp_path, *devices, hbm_bytes=size, row_type=row_type)
    rows = sum(table.rows for table in world.store.tables)
    for gpu, tier in enumerate(world.tiers):
        assert tier.stats().rows < 0.6 * rows
        devices[gpu].enter_thread()
        assert world.look(pooling=pooling, gpu=gpu) == 1.0
        assert not resident(world, gpu, of_part(world, 1 - gpu)).any()
        tier.check_integrity()
    world.close()


def test_a_gpu_that_shares_nothing_has_what_fits_on_it_alone(tmp_path: Path, devices: Sequence[Device]) -> None:
    world = GpuWorld(tmp_path, devices[0], hbm_bytes=HALF_BYTES)
    assert world.look() < 0.9
    world.close()


def test_what_one_gpu_asks_for_often_comes_to_it_as_well(tmp_path: Path, devices: Sequence[Device]) -> None:
    world = GpuWorld(tmp_path, *devices, hbm_bytes=HALF_BYTES)
    theirs = of_part(world, 1)
    hot, cold = theirs[:50], theirs[50:]
    assert not resident(world, 0, theirs).any()
    assert waits_for(lambda: use(world, hot) == 0 and resident(world, 0, hot).mean() > 0.9)
    assert not resident(world, 0, cold).any()
    assert resident(world, 1, hot).all()
    for gpu in (0, 1):
        world.tiers[gpu].check_integrity()
    world.close()


def test_what_is_missed_on_one_gpu_comes_to_the_gpu_whose_part_it_is(tmp_path: Path, devices: Sequence[Device]) -> None:
    world = GpuWorld(tmp_path, *devices, hbm_bytes=120_000)
    absent = [part[~resident(world, gpu, part)][:60] for gpu, part in enumerate((of_part(world, 0), of_part(world, 1)))]
    wanted = np.concatenate(absent)
    ids = world.rows.ids["item"][wanted]
    spec, bags = LookupSpec("item", "item", "none", 1), Jagged(ids, np.arange(len(ids) + 1))

    def ask() -> int:
        answer = world.session.lookup(world.mask, len(ids), spec, bags)
        assert answer is not None
        lookups, misses = np.zeros(len(TABLES), np.uint64), np.zeros(len(TABLES), np.uint64)
        lookups[ITEM], misses[ITEM] = len(ids) + 20_000, len(answer.missed)
        sharing_of(world.store).tell(world.tier, lookups, misses, [(ITEM, ids[answer.missed])], [])
        return len(answer.missed)

    assert ask() == len(ids)
    assert waits_for(lambda: ask() < len(ids) / 10)
    assert resident(world, 0, absent[0]).mean() > 0.8
    assert resident(world, 1, absent[1]).mean() > 0.8
    assert not resident(world, 0, absent[1]).any()
    world.close()


def test_a_session_that_looks_on_its_own_gpu_alone_gets_what_it_asks_for(
    tmp_path: Path, devices: Sequence[Device]
) -> None:
    """Covers a session of a version that was opened before another one had the GPUs share rows."""
    world = GpuWorld(tmp_path, *devices, hbm_bytes=HALF_BYTES)
    session = GpuLookupSession(devices[0], world.tier, list(TABLES), ROWS, ROWS)
    ids = world.rows.ids["item"][of_part(world, 1)[:100]]
    spec, bags = LookupSpec("item", "item", "none", 1), Jagged(ids, np.arange(len(ids) + 1))

    def ask() -> int:
        answer = session.lookup(world.mask, len(ids), spec, bags)
        assert answer is not None
        lookups, misses = np.zeros(len(TABLES), np.uint64), np.zeros(len(TABLES), np.uint64)
        lookups[ITEM], misses[ITEM] = len(ids), len(answer.missed)
        world.tier.tell(lookups, misses, [(ITEM, ids[answer.missed])])
        return len(answer.missed)

    assert ask() == 100
    assert waits_for(lambda: ask() < 10)
    world.close()


def test_snapshots_are_distinguished_on_every_gpu(tmp_path: Path, devices: Sequence[Device]) -> None:
    world = GpuWorld(tmp_path, *devices, hbm_bytes=HALF_BYTES)
    for tier in world.tiers:
        tier.settle_after_s = 60.0  # each is asked for again
    snapshots = [(world.state, world.mask)]
    for _ in range(3):
        before, before_mask = snapshots[-1]
        _, state, mask = world.stage(one_in=7)
        world.store.prepare(mask)
        for gpu, device in enumerate(devices):
            device.enter_thread()
            assert world.look(before, before_mask, gpu=gpu) > 0.5
            assert world.look(state, mask, gpu=gpu) > 0.5
        world.serve(state, mask)
        snapshots.append((state, mask))
    oldest = min(world.deltas)
    world.store.merge(oldest, at=world.deltas[oldest].snapshot)
    state, mask = snapshots[1]  # a rollback, as far as it goes
    world.store.prepare(mask)
    for gpu, device in enumerate(devices):
        device.enter_thread()
        assert world.look(state, mask, gpu=gpu) > 0.5
        assert world.look(gpu=gpu) > 0.5
        world.tiers[gpu].check_integrity()
    world.close()


def test_a_gpu_that_does_not_know_a_snapshot_is_not_asked_for_it(tmp_path: Path, devices: Sequence[Device]) -> None:
    world = GpuWorld(tmp_path, *devices, hbm_bytes=HALF_BYTES)
    world.quiet()
    _, state, mask = world.stage(one_in=2)
    devices[0].enter_thread()
    world.tiers[0].prepare(mask)
    share = world.look(state, mask)
    assert 0.2 < share < 0.65
    assert world.look() == 1.0
    world.tiers[1].prepare(mask)
    devices[0].enter_thread()
    assert world.look(state, mask) > share + 0.2
    world.close()


def test_what_a_session_finds_elsewhere_counts_as_used_there(tmp_path: Path, devices: Sequence[Device]) -> None:
    world = GpuWorld(tmp_path, *devices, hbm_bytes=HALF_BYTES)
    world.quiet()
    theirs = of_part(world, 1)[:200]
    tier = world.tiers[1]
    replica = tier.replica
    assert replica is not None

    def uses() -> np.ndarray:
        _, ids, counts = replica.slab(ITEM).cache.hot_ids(10_000, replica.base_tables)
        order = np.argsort(ids)
        return counts[order][np.isin(ids[order], world.rows.ids["item"][theirs])]

    before = uses()
    devices[0].enter_thread()
    for _ in range(3):
        use(world, theirs)
        tier.counts.age(np.zeros(len(TABLES), np.uint64), np.zeros(len(TABLES), np.uint64))
        tier.read_marks()
        devices[0].enter_thread()
    assert (uses() > before).mean() > 0.9
    world.close()


def test_the_wish_of_the_last_owner_holds_until_it_leaves(tmp_path: Path, devices: Sequence[Device]) -> None:
    world = GpuWorld(tmp_path, *devices, hbm_bytes=HALF_BYTES)
    sharing = sharing_of(world.store)
    placement, one, other = sharing.placement, object(), object()
    sharing.share_rows(devices[:1], one)
    assert sharing.placement is None
    sharing.share_rows(devices, other)
    assert sharing.placement == placement
    sharing.leave(other)
    assert sharing.placement is None
    sharing.leave(other)
    sharing.leave(one)
    assert sharing.placement == placement
    devices[0].enter_thread()
    assert world.look() > 0.9
    world.close()


def test_a_gpu_that_is_closed_leaves_its_part_to_the_others(tmp_path: Path, devices: Sequence[Device]) -> None:
    world = GpuWorld(tmp_path, *devices, hbm_bytes=HALF_BYTES)
    assert world.look() == 1.0
    gpus_of(world.store).close(devices[1].info.index)
    devices[0].enter_thread()
    assert world.look() < 0.7
    theirs = of_part(world, 1)[:50]
    assert waits_for(lambda: use(world, theirs) < 5)
    assert resident(world, 0, theirs).mean() > 0.8
    gpus_of(world.store).open(devices[1], HALF_BYTES)
    assert gpus_of(world.store).wait_filled(60)
    devices[0].enter_thread()
    assert world.look() > 0.95
    world.close()


def test_a_session_holds_up_changes_of_the_gpus_that_it_reads_from(tmp_path: Path, devices: Sequence[Device]) -> None:
    world = GpuWorld(tmp_path, *devices, hbm_bytes=HALF_BYTES)
    world.quiet()
    devices[0].enter_thread()
    session = HeldSession(world, world.state, world.mask, "item", across=True)
    with held_up(lambda: gpus_of(world.store).tiers[1].resize(HALF_BYTES // 2), session, least=0.9):
        time.sleep(0.05)
    devices[0].enter_thread()
    assert world.look() > 0.5
    world.close()


def test_sessions_that_look_for_the_first_time_while_both_gpus_change(
    tmp_path: Path, devices: Sequence[Device]
) -> None:
    world = GpuWorld(tmp_path, *devices, hbm_bytes=HALF_BYTES)
    world.quiet()
    inside = threading.Barrier(2)
    took = [0.0, 0.0]

    def look(gpu: int) -> None:
        reader = sharing_of(world.store).reader(world.tiers[gpu])
        enter = reader._own.enter

        def slowly(mask: int) -> VisibleSnapshot | None:
            visible = enter(mask)
            inside.wait()
            time.sleep(0.1)  # both GPUs are being changed now, and wait for the sessions inside
            return visible

        reader._own.enter = slowly  # type: ignore[method-assign]
        began = time.monotonic()
        assert reader.enter(0) is not None
        took[gpu] = time.monotonic() - began
        reader.leave()

    def change(gpu: int) -> None:
        time.sleep(0.05)
        world.tiers[gpu].resize(HALF_BYTES)

    threads = [threading.Thread(target=work, args=(gpu,)) for gpu in (0, 1) for work in (look, change)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(took) < 10.0
    assert not any(tier.trouble for tier in world.tiers)
    world.close()


def test_rows_are_shared_from_now_on_and_not_any_more(tmp_path: Path, devices: Sequence[Device]) -> None:
    world = GpuWorld(tmp_path, *devices, hbm_bytes=HALF_BYTES)
    sharing_of(world.store).share_rows([])
    devices[0].enter_thread()
    assert 0.3 < world.look() < 0.95
    sharing_of(world.store).share_rows(devices)
    assert gpus_of(world.store).wait_filled(60)
    devices[0].enter_thread()
    assert world.look() > 0.9
    world.close()


@pytest.mark.slow
def test_every_row_is_its_snapshots_own_while_gpus_share_them(tmp_path: Path, devices: Sequence[Device]) -> None:
    soak = HbmSoak(tmp_path / "store", *devices, seed=5)
    wanted = ("GPU lookups", "GPU rows", "deltas", "merges", "rollbacks", "reopened", "resized", "GPU checks")
    soak.run(SOAK_S, wanted)
    for what in wanted:
        assert soak.counts[what] > 0, f"no {what}: {soak.counts}"
