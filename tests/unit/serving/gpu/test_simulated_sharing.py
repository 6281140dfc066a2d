"""Lookups on simulated GPUs that share rows: the processor's scores on each of them, also from rows of the other."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.gpu.pipeline import GpuPipeline
from serving.gpu.sharing import SAMPLED_BATCHES
from storage.hbm.gpus import gpus_of
from storage.hbm.sharing import RowSharing, sharing_of
from storage.hbm.tier import HbmTier
from tests.simulated_gpu import SimulatedGpus
from tests.support.gpu.simulated_world import ModelWorld, agree

# What nothing orders is found by the order of events, in any schedule: one that runs everything at once, and one that
# runs it at any time.
SCHEDULES = [("eager", 0), ("random", 1)]
# Of each GPU: more than half of all rows take, less than all.
HALF = 56_000


class Shared:
    """Makes a world on two GPUs, with a pipeline on each."""

    def __init__(self, folder: Path, schedule: str, seed: int, *, strict: bool = False) -> None:
        self.gpus = SimulatedGpus(2, schedule=schedule, seed=seed, strict=strict)
        self.world = ModelWorld(folder)
        sharing_of(self.world.store).share_rows(self.gpus.drivers)
        models = [self.world.model(driver, HALF, shares_rows=True) for driver in self.gpus.drivers]
        self.pipelines: list[GpuPipeline] = []
        for driver, model in zip(self.gpus.drivers, models, strict=True):
            driver.enter_thread()
            self.pipelines.append(self.world.pipeline(model))

    def close(self) -> None:
        for driver, pipeline in zip(self.gpus.drivers, self.pipelines, strict=True):
            driver.enter_thread()
            pipeline.close()
            driver.finish()
            assert not driver.errors
        self.world.close()


@pytest.fixture(params=SCHEDULES)
def shared(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shared]:
    made = Shared(tmp_path, *request.param, strict=request.param[0] == "eager")
    yield made
    made.close()


@pytest.mark.slow
def test_every_row_is_found_from_both_gpus(shared: Shared) -> None:
    world, rng = shared.world, np.random.default_rng(1)
    replicas = [tier.replica for tier in gpus_of(world.store).tiers.values()]
    rows = [sum(slab.cache.size() for slab in replica.slabs) for replica in replicas if replica is not None]
    assert sum(rows) == sum(table.rows for table in world.store.tables)
    assert max(rows) < 0.7 * sum(rows)
    for worker in gpus_of(world.store)._workers.values():
        worker.close()  # nothing moves from now on
    for driver in shared.gpus.drivers:
        driver.forbid_allocation()
    for pipeline in shared.pipelines:
        for size in (1, 2, 7, 33, 64):
            batch = world.batch(rng, size, absent=0)
            found = agree(world, pipeline, batch)
            assert found.counts.hbm == found.counts.total()
            # Without a missed row the bits are the processor's.
            same = world.processor.score([batch], world.first).outputs[0]
            assert pipeline.score([batch], world.first).outputs[0].tobytes() == same.tobytes()
            agree(world, pipeline, world.batch(rng, size))
            agree(world, pipeline, world.sided(rng, size, max(1, size // 3)))
    for driver in shared.gpus.drivers:
        driver.forbid_allocation(False)


@pytest.mark.slow
def test_snapshots_on_both_gpus(shared: Shared) -> None:
    world, rng = shared.world, np.random.default_rng(2)
    masks = [0]
    for _ in range(3):
        number = world.store.stage(world.delta(rng))
        masks.append(masks[-1] | 1 << number)
        if len(masks) % 2 == 0:
            world.store.prepare(masks[-1])
        for mask in masks[-2:]:
            for pipeline in shared.pipelines:
                agree(world, pipeline, world.batch(rng, 20), mask)
                agree(world, pipeline, world.sided(rng, 20, 4), mask)


@pytest.mark.slow
def test_what_changes_on_another_gpu_captures_nothing_anew(shared: Shared) -> None:
    world, rng = shared.world, np.random.default_rng(5)
    for worker in gpus_of(world.store)._workers.values():
        worker.close()
    mask = 1 << world.store.stage(world.delta(rng))
    gpus_of(world.store).tiers[0].prepare(mask)  # the other GPU does not know it
    driver, pipeline = shared.gpus.drivers[0], shared.pipelines[0]
    captured = driver.counts["capture"]
    for number in range(8):
        agree(world, pipeline, world.batch(rng, 20), mask * (number % 2))
    gpus_of(world.store).resize(1, 40_000)
    agree(world, pipeline, world.batch(rng, 20))
    assert driver.counts["capture"] == captured


def test_idle_sessions_keep_no_replica_that_was_replaced(shared: Shared) -> None:
    world, rng = shared.world, np.random.default_rng(6)
    for pipeline in shared.pipelines:
        agree(world, pipeline, world.batch(rng, 20))
    gpus = gpus_of(world.store)
    replaced = [weakref.ref(tier.replica) for tier in gpus.tiers.values() if tier.replica is not None]
    assert len(replaced) == 2
    for index in (0, 1):
        gpus.resize(index, 40_000)
    gc.collect()
    assert [replica() for replica in replaced] == [None, None]


@pytest.mark.slow
def test_other_sizes_and_gpus_that_come_and_go(shared: Shared) -> None:
    world, rng = shared.world, np.random.default_rng(3)
    gpus, sharing = gpus_of(world.store), sharing_of(world.store)
    steps = [
        lambda: gpus.resize(1, 20_000),
        lambda: sharing.share_rows([]),
        lambda: gpus.resize(0, HALF),
        lambda: sharing.share_rows(shared.gpus.drivers),
        lambda: gpus.close(1),
    ]
    for step in steps:
        step()
        for pipeline in shared.pipelines[: 1 if 1 not in gpus.tiers else 2]:
            for size in (1, 20, 64):
                agree(world, pipeline, world.batch(rng, size))


@pytest.mark.parametrize("shared", [("random", 1)], indirect=True)  # of ids, not of streams
def test_a_gpu_learns_of_what_its_contexts_find_elsewhere(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    world, rng = shared.world, np.random.default_rng(4)
    told: list[int] = []
    tell = RowSharing.tell

    def watched(self: RowSharing, tier: HbmTier, *batch: Any) -> None:
        told.append(sum(len(ids) for _, ids in batch[-1]))
        tell(self, tier, *batch)

    monkeypatch.setattr(RowSharing, "tell", watched)
    for _ in range(10 * SAMPLED_BATCHES):
        agree(world, shared.pipelines[0], world.batch(rng, 16))
    assert 1 <= len([count for count in told if count]) <= 40
    assert 0 < max(told) < 16 * 7 * 8 / 2
