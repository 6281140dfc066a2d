"""Lookups on a simulated GPU: the processor's scores, whatever part of the rows is there, and however streams run."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from serving.gpu import lookup, weight_slots
from serving.gpu.missed_rows import MissedLookup, MissedRows
from serving.gpu.pipeline import GpuPipeline
from serving.model_config.buckets import GraphSettings
from storage import GraphInput
from storage.errors import DeviceLost, DeviceOutOfMemory
from storage.hbm.gpus import gpus_of
from tests.simulated_gpu import SimulatedDriver, SimulatedGpus
from tests.support.gpu.simulated_world import ROWS, ModelWorld, agree

# What nothing orders is found by the order of events, in any schedule: one that runs everything at once, and one that
# runs it at any time.
SCHEDULES = [("eager", 0), ("random", 1)]
ALL = 4 << 20
MakeWorld = Callable[..., ModelWorld]


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    made: list[ModelWorld] = []

    def make(**options: object) -> ModelWorld:
        made.append(ModelWorld(tmp_path / str(len(made)), **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: MakeWorld) -> ModelWorld:
    return make_world()


def gpu(schedule: str = "random", seed: int = 1, **options: object) -> SimulatedDriver:
    driver = SimulatedGpus(schedule=schedule, seed=seed, **options).driver(0)  # type: ignore[arg-type]
    driver.enter_thread()
    return driver


def finish(driver: SimulatedDriver) -> None:
    driver.enter_thread()
    driver.finish()
    assert not driver.errors


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_all_rows_on_the_gpu(world: ModelWorld, schedule: str, seed: int) -> None:
    driver = gpu(schedule, seed, strict=True)
    pipeline = world.pipeline(world.model(driver, ALL))
    rng = np.random.default_rng(seed)
    for rows in (1, 2, 7, 33, 64):
        found = agree(world, pipeline, world.batch(rng, rows, absent=0))
        assert found.counts.hbm == found.counts.total()
        # Without a missed row the bits are the processor's.
        batch = world.batch(rng, rows, absent=0)
        same = world.processor.score([batch], world.first).outputs[0]
        assert pipeline.score([batch], world.first).outputs[0].tobytes() == same.tobytes()
    assert (pipeline.counted[:, -1] > 0).all()
    pipeline.close()
    finish(driver)


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_some_rows_on_the_gpu(world: ModelWorld, schedule: str, seed: int) -> None:
    driver = gpu(schedule, seed)
    pipeline = world.pipeline(world.model(driver, 40_000))
    driver.forbid_allocation()
    rng = np.random.default_rng(seed)
    counts = []
    for rows in (1, 5, 16, 64, *rng.integers(1, 65, 12).tolist()):
        found = agree(world, pipeline, world.batch(rng, rows))
        counts.append((found.counts.hbm, found.counts.dram))
    assert np.array(counts).sum(0).min() > 0
    driver.forbid_allocation(False)
    pipeline.close()
    finish(driver)


@pytest.mark.parametrize(("hbm_bytes", "is_known"), [(ALL, False), (40_000, True), (1, True), (0, True)])
def test_when_lookups_ended_is_known_unless_one_graph_did_all(
    world: ModelWorld, hbm_bytes: int, is_known: bool
) -> None:
    driver = gpu()
    pipeline = world.pipeline(world.model(driver, hbm_bytes))
    rng = np.random.default_rng(0)
    scores = [agree(world, pipeline, world.batch(rng, 33, absent=0)) for _ in range(4)]
    for each in scores:
        assert (each.lookup_ns > 0) == is_known
        assert each.lookup_ns < each.infer_ns
    pipeline.close()
    finish(driver)


def test_a_gpu_that_has_nothing(world: ModelWorld) -> None:
    driver = gpu()
    model = world.model(driver, 1)
    assert model.gpu is not None
    pipeline = world.pipeline(model)
    rng = np.random.default_rng(0)
    for rows in (1, 20, 64):
        agree(world, pipeline, world.batch(rng, rows))
    stats = world.tier().stats()
    assert stats.capacity_rows <= 3
    assert sum(table.misses for table in stats.tables) > 0.8 * sum(table.lookups for table in stats.tables)
    pipeline.close()
    finish(driver)


@pytest.mark.slow
@pytest.mark.parametrize("hbm_bytes", [40_000, ALL])
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_user_side_goes_to_the_gpu_once(world: ModelWorld, schedule: str, seed: int, hbm_bytes: int) -> None:
    driver = gpu(schedule, seed)
    pipeline = world.pipeline(world.model(driver, hbm_bytes))
    rng = np.random.default_rng(seed)
    for rows, users in ((1, 1), (5, 1), (64, 3), (30, 30), (17, 4)):
        agree(world, pipeline, world.sided(rng, rows, users))
    pipeline.close()
    finish(driver)


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_snapshots_beside_each_other_merged_and_discarded(world: ModelWorld, schedule: str, seed: int) -> None:
    driver = gpu(schedule, seed)
    pipeline = world.pipeline(world.model(driver, ALL if seed else 60_000))
    rng = np.random.default_rng(seed)
    shown = 0
    for step in range(4):
        delta = world.delta(rng)
        number = world.store.stage(delta)
        both = (shown, shown | 1 << number)
        world.store.prepare(both[1])
        for _ in range(4):
            for mask in both:
                agree(world, pipeline, world.batch(rng, int(rng.integers(1, 65))), mask)
                agree(world, pipeline, world.sided(rng, int(rng.integers(1, 65)), 3), mask)
        if step == 2:
            world.store.discard(number)
            shown = both[0]
            continue
        shown = both[1]
        if step == 1:
            for merged in (0, 1):
                world.store.merge(merged, at=f"{merged:032x}")
    for _ in range(4):
        agree(world, pipeline, world.batch(rng, 40), shown)
    world.tier().check_integrity()
    pipeline.close()
    finish(driver)


def test_a_snapshot_that_the_gpu_cannot_answer_for_is_looked_up_by_the_host(world: ModelWorld) -> None:
    driver = gpu()
    pipeline = world.pipeline(world.model(driver, ALL))
    rng = np.random.default_rng(0)
    number = world.store.stage(world.delta(rng))
    first = agree(world, pipeline, world.batch(rng, 20), 1 << number)
    assert first.counts.hbm == 0
    world.store.prepare(1 << number)
    assert agree(world, pipeline, world.batch(rng, 20), 1 << number).counts.hbm > 0
    pipeline.close()
    finish(driver)


def test_more_misses_than_room_and_they_are_offered_all_the_same(
    world: ModelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "MOST_MISSES", 8)
    driver = gpu()
    model = world.model(driver, 40_000)
    pipeline = world.pipeline(model)
    rng = np.random.default_rng(0)
    found = agree(world, pipeline, world.batch(rng, ROWS))
    assert found.counts.hbm == 0
    assert found.counts.dram > 0
    told = world.tier().stats().tables
    assert sum(table.lookups for table in told) == sum(table.misses for table in told) > 0
    # A batch with few misses does not need the room.
    assert agree(world, pipeline, world.batch(rng, 1, most=1)).counts.hbm >= 0
    pipeline.close()
    finish(driver)


def test_missed_rows_that_take_too_much_memory(world: ModelWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "LEAST_MISSED_BYTES", 0)
    driver = gpu()
    pipeline = world.pipeline(world.model(driver, 1))
    rng = np.random.default_rng(0)
    assert agree(world, pipeline, world.batch(rng, ROWS, most=40)).counts.hbm == 0
    pipeline.close()
    finish(driver)


def test_more_ids_than_room(world: ModelWorld) -> None:
    driver = gpu()
    pipeline = world.pipeline(world.model(driver, ALL))
    rng = np.random.default_rng(0)
    assert agree(world, pipeline, world.batch(rng, ROWS, most=200)).counts.hbm == 0
    assert agree(world, pipeline, world.batch(rng, ROWS, most=2)).counts.hbm > 0
    pipeline.close()
    finish(driver)


def test_empty_bags_and_batches_of_nothing_but_them(world: ModelWorld) -> None:
    driver = gpu()
    pipeline = world.pipeline(world.model(driver, ALL))
    rng = np.random.default_rng(0)
    for rows in (1, 9, 64):
        agree(world, pipeline, world.batch(rng, rows, most=0))
        agree(world, pipeline, world.sided(rng, rows, 1, most=0))
    pipeline.close()
    finish(driver)


@pytest.mark.parametrize("hbm_bytes", [40_000, ALL])
def test_without_graphs(world: ModelWorld, hbm_bytes: int) -> None:
    driver = gpu()
    model = world.model(driver, hbm_bytes, GraphSettings(graphs=False))
    pipeline = world.pipeline(model)
    rng = np.random.default_rng(0)
    for rows in (1, 3, 64, 20):
        agree(world, pipeline, world.batch(rng, rows))
    assert model.counters.batches == {"eager": 4}
    pipeline.close()
    finish(driver)


def test_what_no_graph_holds_runs_without_one(world: ModelWorld) -> None:
    driver = gpu()
    driver.refuse_capture = True
    model = world.model(driver, 40_000)
    pipeline = world.pipeline(model)
    rng = np.random.default_rng(0)
    for rows in (1, 3, 64, 20):
        agree(world, pipeline, world.batch(rng, rows))
    assert set(model.counters.batches) == {"eager"}
    assert model.not_captured
    pipeline.close()
    finish(driver)


def test_where_misses_are_usual_the_dense_part_waits_for_them(
    world: ModelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = gpu()
    model = world.model(driver, 40_000)
    pipeline = world.pipeline(model)
    launched: list[str] = []
    real = SimulatedDriver.launch

    def launch(self: SimulatedDriver, graph: Any, stream: Any) -> None:
        launched.append(graph.name.split("/")[2])
        real(self, graph, stream)

    monkeypatch.setattr(SimulatedDriver, "launch", launch)
    rng = np.random.default_rng(0)
    for _ in range(40):
        agree(world, pipeline, world.batch(rng, 64))
    assert launched[:2] == ["whole", "dense"]
    assert launched[-2:] == ["look_up", "dense"]
    none = world.batch(rng, 64, most=0)
    for _ in range(40):
        agree(world, pipeline, none)
    assert launched[-2:] == ["whole", "whole"]
    pipeline.close()
    finish(driver)


def test_a_tier_that_closes_or_grows_under_a_context(world: ModelWorld) -> None:
    driver = gpu()
    pipeline = world.pipeline(world.model(driver, 40_000))
    rng = np.random.default_rng(0)
    agree(world, pipeline, world.batch(rng, 30))
    gpus_of(world.store).resize(0, ALL)
    assert gpus_of(world.store).wait_filled(60)
    for rows in (30, 64, 1):
        found = agree(world, pipeline, world.batch(rng, rows, absent=0))
        assert found.counts.hbm == found.counts.total()
    gpus_of(world.store).close(0)
    assert agree(world, pipeline, world.batch(rng, 30)).counts.hbm == 0
    pipeline.close()
    finish(driver)


def test_no_graph_of_a_replica_that_is_gone_is_kept(world: ModelWorld) -> None:
    driver = gpu()
    pipeline = world.pipeline(world.model(driver, 40_000))
    rng = np.random.default_rng(0)
    graphs = pipeline._context.graphs
    agree(world, pipeline, world.batch(rng, 30))
    # The driver for CUDA keeps all graphs of a stream until the last of them goes.
    before = [weakref.ref(graph) for graph in graphs._graphs.values()]
    assert before
    gpus_of(world.store).resize(0, ALL)
    assert gpus_of(world.store).wait_filled(60)
    agree(world, pipeline, world.batch(rng, 30))
    gc.collect()
    assert [ref() for ref in before if ref() is not None] == []
    captures = driver.counts["capture"]
    agree(world, pipeline, world.batch(rng, 30))
    # And those of the one that is there are not captured for every batch.
    assert driver.counts["capture"] <= captures + 1
    pipeline.close()
    finish(driver)


def test_rows_that_come_to_be_asked_for_come_to_the_gpu(world: ModelWorld) -> None:
    driver = gpu()
    pipeline = world.pipeline(world.model(driver, ALL, filled=False))
    rng = np.random.default_rng(0)
    batch = world.batch(rng, 30, absent=0)
    for _ in range(50):
        found = agree(world, pipeline, batch)
        if found.counts.hbm == found.counts.total():
            break
    else:
        raise AssertionError(found.counts)
    pipeline.close()
    finish(driver)


def test_rows_from_the_disk_and_those_that_do_not_come_in_time(make_world: MakeWorld) -> None:
    world = make_world(dram_bytes=4_000)
    driver = gpu()
    model = world.model(driver, 4_000)
    pipeline = world.pipeline(model)
    rng = np.random.default_rng(0)
    found = [agree(world, pipeline, world.batch(rng, 30)).counts for _ in range(3)]
    assert sum(each.ssd for each in found) > 0
    hasty = world.pipeline(model, timeout_s=0.0)
    counts = hasty.score([world.batch(rng, 30)], world.first).counts
    assert counts.unresolved > 0
    pipeline.close()
    hasty.close()
    finish(driver)


@pytest.mark.slow
@pytest.mark.parametrize("hbm_bytes", [40_000, 1])
@pytest.mark.parametrize("whose", ["session", "replay", "replay, without a graph"])
def test_no_slot_of_weights_is_held_while_missed_rows_are_waited_for(
    world: ModelWorld, monkeypatch: pytest.MonkeyPatch, hbm_bytes: int, whose: str
) -> None:
    driver = gpu()
    model = world.model(driver, hbm_bytes)
    pipeline = world.pipeline(model, first=whose == "session")
    rng = np.random.default_rng(0)
    for _ in range(1 if hbm_bytes > 1 else 20):  # until misses are usual
        agree(world, pipeline, world.batch(rng, 20))
    graph = world.first.graph
    weight = next(iter(graph.weights()))
    updates = [
        graph.with_weights({weight: torch.tensor([2.0 + number])}) for number in range(len(model.weight_slots.all))
    ]
    find = MissedLookup.find

    def slow(*args: Any) -> MissedRows:
        with ExitStack() as weight_slots:
            for update in updates:
                weight_slots.enter_context(model.weight_slots.pinned(update))
        driver.refuse_capture = whose == "replay, without a graph"
        return find(*args)

    monkeypatch.setattr(weight_slots, "_WAIT_S", 0.2)
    monkeypatch.setattr(MissedLookup, "find", slow)
    uploads = model.weight_slots.uploads
    driver.forbid_allocation(whose == "session")
    for rows in (20, 31):
        found = agree(world, pipeline, world.batch(rng, rows))
        assert found.counts.dram > 0
    # Its own weights have come again, each time.
    assert model.weight_slots.uploads >= uploads + 2 * len(updates) + 1
    assert bool(model.not_captured) == (whose == "replay, without a graph")
    assert all(weight_slot.pins == 0 for weight_slot in model.weight_slots.all)
    driver.forbid_allocation(False)
    pipeline.close()
    finish(driver)


@pytest.mark.slow
@pytest.mark.parametrize("after", range(1, 25, 3))
def test_a_lost_gpu(world: ModelWorld, after: int) -> None:
    driver = gpu(seed=after)
    model = world.model(driver, 40_000)
    pipeline = world.pipeline(model)
    rng = np.random.default_rng(0)
    driver.lose(after)
    batches = [world.batch(rng, 20) for _ in range(30)]
    with pytest.raises(DeviceLost):
        any(agree(world, pipeline, batch) is None for batch in batches)
    assert model.given_up
    pipeline.close()


def test_a_batch_without_memory(world: ModelWorld) -> None:
    driver = gpu()
    pipeline = world.pipeline(world.model(driver, 40_000))
    rng = np.random.default_rng(0)
    for after in range(1, 4):
        agree(world, pipeline, world.batch(rng, 20))
        driver.run_out(after)
        batch = world.batch(rng, 20)
        try:
            agree(world, pipeline, batch)
        except DeviceOutOfMemory:
            agree(world, pipeline, batch)
    driver.run_out(0)
    pipeline.close()
    finish(driver)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda inputs: inputs.remove(next(e for e in inputs if e.kind == "rows")), "other than its rows alone"),
        (
            lambda inputs: inputs.append(next(e for e in inputs if e.kind == "rows").model_copy(update={"name": "b"})),
            "two inputs of one kind",
        ),
        (
            lambda inputs: inputs.__setitem__(
                [e.kind for e in inputs].index("mask"),
                next(e for e in inputs if e.kind == "mask").model_copy(update={"dtype": "FP32"}),
            ),
            "is FP32, not BOOL",
        ),
    ],
)
def test_what_a_gpu_cannot_look_up_the_host_does_and_the_log_says_so_once(
    make_world: MakeWorld, change: Callable[[list[GraphInput]], object], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(change=change)
    driver = gpu()
    with caplog.at_level(logging.WARNING):
        model = world.model(driver, ALL)
        pipelines: list[GpuPipeline] = [world.pipeline(model) for _ in range(2)]
    said = [record.message for record in caplog.records if record.name == "emberline.serving"]
    assert [why in message for message in said] == [True]
    assert model.gpu is None
    rng = np.random.default_rng(0)
    for pipeline in pipelines:
        assert agree(world, pipeline, world.batch(rng, 20)).counts.hbm == 0
        pipeline.close()
    finish(driver)
