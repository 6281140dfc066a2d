"""Tests sessions on a simulated GPU: the processor's scores in whatever order streams run, and what fails how."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from serving.engine.device_checks import tolerances
from serving.engine.model import LoadedModel
from serving.engine.validation import validate
from serving.gpu.device_model import DeviceModel
from serving.model_config.options import ModelOptions
from serving.pipeline.snapshot import Snapshot
from storage.checkpoint import DenseGraph
from storage.errors import ConfigError, DeviceError, DeviceLost, DeviceOutOfMemory, ParityError
from tests.simulated_gpu import SimulatedDriver, SimulatedGpus

MakeModel = Callable[..., LoadedModel]
SCHEDULES = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]
GPU = "instance_group { kind: KIND_GPU count: %d }\n"


def option(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def ask(model: LoadedModel, world: Any, ids: np.ndarray) -> np.ndarray:
    scores: np.ndarray = asyncio.run(model.infer(world.columns(ids), len(ids))).outputs[0]
    return scores


def on_gpu(model: LoadedModel, index: int = 0) -> DeviceModel:
    return model.parts.devices.models[index]


def assert_no_mistake(gpus: SimulatedGpus) -> None:
    for driver in gpus.drivers:
        driver.finish()
        assert not driver.errors


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_every_batch_size_has_the_processors_scores(
    make_model: MakeModel, world: Any, schedule: str, seed: int
) -> None:
    gpus = SimulatedGpus(schedule=schedule, seed=seed, strict=True)
    model = make_model(GPU % 1, gpus=gpus)
    rng = np.random.default_rng(seed)
    for rows in [*range(1, 65), 64, 1, 33]:
        ids = rng.integers(0, 520, rows)
        assert np.allclose(ask(model, world, ids), world.score(ids), atol=1e-6)
    counters = on_gpu(model).counters
    assert set(counters.batches) == {"1", "2", "4", "8", "16", "32", "64"}
    assert counters.padded_rows > 0
    assert_no_mistake(gpus)


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_sessions_share_the_weights_and_nothing_else(
    make_model: MakeModel, world: Any, schedule: str, seed: int
) -> None:
    gpus = SimulatedGpus(schedule=schedule, seed=seed)
    model = make_model(GPU % 4, gpus=gpus)
    uploads = on_gpu(model).weight_slots.uploads
    gpus.driver(0).forbid_allocation()
    storm(model, world, threads=6, requests=60)
    gpus.driver(0).forbid_allocation(False)
    assert on_gpu(model).weight_slots.uploads == uploads == 1
    assert sum(session.statistics.requests for session in model.group.sessions) == 360
    assert_no_mistake(gpus)


def storm(
    model: LoadedModel, world: Any, threads: int, requests: int, scales: Callable[[str], float] | None = None
) -> None:
    """Sends requests from threads; each answer must be of the snapshot that it names."""
    wrong: list[object] = []

    def run(seed: int) -> None:
        rng = np.random.default_rng(seed)

        async def work() -> None:
            for _ in range(requests):
                ids = rng.integers(0, 520, int(rng.integers(1, 20)))
                result = await model.infer(world.columns(ids), len(ids))
                expected = world.score(ids, 1.0 if scales is None else scales(result.snapshot.id))
                if not np.allclose(result.outputs[0], expected, atol=1e-6):
                    wrong.append((result.snapshot, ids))

        asyncio.run(work())

    callers = [threading.Thread(target=run, args=(seed,)) for seed in range(threads)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_weights_change_under_load_without_a_new_capture(
    make_model: MakeModel, world: Any, graph: DenseGraph, schedule: str, seed: int
) -> None:
    gpus = SimulatedGpus(schedule=schedule, seed=seed)
    driver = gpus.driver(0)
    model = make_model(GPU % 3, gpus=gpus)
    captured = driver.counts["capture"]
    scales = {world.published.snapshot: 1.0}
    snapshots = [world.snapshot(graph, number, scale=1.0 + number / 10) for number in range(1, 13)]
    scales |= {snapshot.id: 1.0 + snapshot.sequence / 10 for snapshot in snapshots}
    driver.forbid_allocation()
    done = threading.Event()

    def switch() -> None:
        for snapshot in snapshots:
            # Validation does the same: the candidate is replayed, and is on the GPU, before it is served.
            model.parts.score([model.parts.features(world.columns(np.arange(9)), 9)], snapshot)
            model.history.switch(snapshot)
        model.history.switch(snapshots[3])  # Switches back to an earlier snapshot.
        done.set()

    switching = threading.Thread(target=switch)
    switching.start()
    storm(model, world, threads=4, requests=80, scales=scales.__getitem__)
    switching.join()
    assert done.is_set()
    ids = np.arange(40)
    assert np.allclose(ask(model, world, ids), world.score(ids, 1.4), atol=1e-6)
    # The replays' own graphs are captured when they are needed; the sessions' graphs existed before.
    replays = driver.counts["capture"] - captured
    assert replays <= len(on_gpu(model).weight_slots.all) * len(on_gpu(model).buckets.all)
    assert_no_mistake(gpus)


def test_a_canary_and_what_is_served_are_both_on_the_gpu(make_model: MakeModel, world: Any, graph: DenseGraph) -> None:
    gpus = SimulatedGpus(schedule="random", seed=3)
    model = make_model(GPU % 2, gpus=gpus)
    canary = world.snapshot(graph, 1, scale=2.0)
    model.history.set_canary(canary, 0.5)
    ids = np.arange(30)
    scores = {True: world.score(ids, 2.0), False: world.score(ids)}

    async def run() -> None:
        for number in range(20):
            arm = number % 2 == 0
            result = await model.infer(world.columns(ids), 30, canary=arm)
            assert np.allclose(result.outputs[0], scores[arm], atol=1e-6)

    asyncio.run(run())
    assert on_gpu(model).weight_slots.uploads == 2
    assert_no_mistake(gpus)


def test_the_gate_checks_every_size_on_every_gpu(make_model: MakeModel, world: Any, graph: DenseGraph) -> None:
    gpus = SimulatedGpus(2, schedule="random")
    model = make_model(GPU % 1, gpus=gpus)
    report = validate(model.parts, None, model.history.current, world.golden(), None, options=ModelOptions())
    assert report.golden_difference < 1e-5
    for index in (0, 1):
        assert on_gpu(model, index).is_checked
        assert set(on_gpu(model, index).counters.batches) == {"1", "2", "4", "8", "16", "32", "64"}
    wrong = world.snapshot(graph, 1, scale=1.5)
    with pytest.raises(ParityError, match="golden requests"):
        validate(model.parts, None, wrong, world.golden(), None, options=ModelOptions())
    assert_no_mistake(gpus)


def test_a_gpu_that_computes_something_else_is_not_served(make_model: MakeModel, world: Any) -> None:
    gpus = SimulatedGpus()
    model = make_model(GPU % 1 + option("on_gpu_failure", "eager"), gpus=gpus)
    device = on_gpu(model)
    exact = device.forward
    device.forward = lambda *arguments: [exact(*arguments)[0] * 1.01]
    with pytest.raises(ParityError, match=r"output .score. of a batch of 1 row\(s\) differs"):
        validate(model.parts, None, model.history.current, world.golden(), None, options=ModelOptions())


def test_or_the_processor_answers_instead(make_model: MakeModel, world: Any) -> None:
    gpus = SimulatedGpus()
    model = make_model("", gpus=gpus)
    device = on_gpu(model)
    exact = device.forward
    device.forward = lambda *arguments: [exact(*arguments)[0] * 1.01]
    validate(model.parts, None, model.history.current, world.golden(), None, options=ModelOptions())
    assert "differs by" in device.given_up
    ids = np.arange(50)
    assert np.allclose(ask(model, world, ids), world.score(ids), atol=1e-6)
    assert device.counters.on_processor == 1
    assert model.trouble == ""


def test_closing_gives_all_memory_back(make_model: MakeModel, world: Any) -> None:
    gpus = SimulatedGpus()
    model = make_model(GPU % 3, gpus=gpus)
    ask(model, world, np.arange(8))
    driver = gpus.driver(0)
    assert driver.memory().device > 0
    model.resize(1)
    one = driver.memory()
    model.resize(4)
    ask(model, world, np.arange(8))
    model.resize(1)
    for _ in range(20):
        ask(model, world, np.arange(8))
    assert model.close(10.0)
    assert (driver.memory().device, driver.memory().pinned) == (0, 0)
    assert one.device > 0
    assert_no_mistake(gpus)


class TestFailures:
    """Tests that each failure is handled as `on_gpu_failure` says."""

    @pytest.mark.slow
    def test_no_memory_at_the_start(self, make_model: MakeModel, world: Any) -> None:
        gpus = SimulatedGpus()
        driver = gpus.driver(0)
        for after in range(1, 40):
            driver.fail_allocation(after)
            before = driver.counts["device"] + driver.counts["pinned"]
            loaded = False
            with contextlib.suppress(DeviceOutOfMemory):
                make_model(GPU % 1 + option("hbm_bytes", "0"), gpus=gpus)
                loaded = True
            if loaded:
                break
            gc.collect()
            assert driver.memory().device == 0, after
        assert after > 15  # Allocations up to the first session.
        assert driver.counts["device"] + driver.counts["pinned"] - before < after
        driver.fail_allocation(0)
        assert_no_mistake(gpus)

    def test_no_memory_at_the_start_with_the_processor_beside(self, make_model: MakeModel, world: Any) -> None:
        places = set()
        for after in range(1, 30):
            gpus = SimulatedGpus()
            gpus.driver(0).fail_allocation(after)
            model = make_model("instance_group { count: 2 }", gpus=gpus)
            assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
            places.add(tuple(session.place for session in model.group.sessions))
            gpus.driver(0).fail_allocation(0)
            assert model.trouble == ""
        assert {(None, None), (0, 0)} <= places

    def test_no_memory_for_one_session_more(self, make_model: MakeModel, world: Any) -> None:
        gpus = SimulatedGpus()
        model = make_model(GPU % 1, gpus=gpus)
        gpus.driver(0).fail_allocation(2)
        with pytest.raises(DeviceOutOfMemory):
            model.resize(3)
        assert model.sessions == 1
        assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
        model.resize(3)
        assert model.sessions == 3

    def test_what_no_graph_holds_runs_without_one(self, make_model: MakeModel, world: Any) -> None:
        gpus = SimulatedGpus(schedule="random")
        gpus.driver(0).refuse_capture = True
        model = make_model(GPU % 2, gpus=gpus)
        before = on_gpu(model).counters.batches["eager"]
        for rows in (1, 7, 64):
            ids = np.arange(rows)
            assert np.allclose(ask(model, world, ids), world.score(ids), atol=1e-6)
        assert on_gpu(model).counters.batches == {"eager": before + 3}
        assert on_gpu(model).not_captured
        assert_no_mistake(gpus)

    def test_or_is_refused(self, make_model: MakeModel) -> None:
        gpus = SimulatedGpus()
        gpus.driver(0).refuse_capture = True
        with pytest.raises(DeviceError):
            make_model(GPU % 1 + option("on_gpu_failure", "refuse"), gpus=gpus)

    def test_a_batch_without_memory_is_an_error_and_the_next_one_is_not(
        self, make_model: MakeModel, world: Any
    ) -> None:
        gpus = SimulatedGpus(schedule="random")
        model = make_model(GPU % 1, gpus=gpus)
        gpus.driver(0).run_out()
        with pytest.raises(DeviceOutOfMemory):
            ask(model, world, np.arange(9))
        assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
        assert model.trouble == ""
        assert_no_mistake(gpus)

    def test_or_the_processors(self, make_model: MakeModel, world: Any) -> None:
        gpus = SimulatedGpus()
        model = make_model("", gpus=gpus)
        gpus.driver(0).run_out()
        for _ in range(3):
            assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
        assert on_gpu(model).counters.on_processor == 1
        assert model.group.counted().sum() == 27  # Each id is looked up once, however often the batch was tried.

    @pytest.mark.parametrize("after", range(1, 12))
    def test_a_lost_gpu_answers_nothing_and_says_so(self, make_model: MakeModel, world: Any, after: int) -> None:
        gpus = SimulatedGpus(schedule="random", seed=after)
        model = make_model(GPU % 2, gpus=gpus)
        gpus.driver(0).lose(after)
        reasons: list[str] = []
        for _ in range(6):
            try:
                assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
            except DeviceLost as error:
                reasons.append(str(error))
        assert len(reasons) >= 3
        assert all("GPU 0" in reason for reason in reasons)
        assert model.trouble
        assert model.sessions >= 1

    @pytest.mark.parametrize("after", range(1, 12))
    def test_or_the_processor_takes_over(self, make_model: MakeModel, world: Any, after: int) -> None:
        gpus = SimulatedGpus(schedule="random", seed=after)
        model = make_model("instance_group { count: 2 }", gpus=gpus)
        gpus.driver(0).lose(after)
        for _ in range(6):
            assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
        assert on_gpu(model).given_up
        assert model.trouble == ""

    def test_the_sessions_of_another_gpu_go_on(self, make_model: MakeModel, world: Any) -> None:
        gpus = SimulatedGpus(2)
        model = make_model(GPU % 1, gpus=gpus)
        assert [session.place for session in model.group.sessions] == [0, 1]
        gpus.driver(0).lose()
        failed = 0
        for _ in range(12):
            try:
                assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
            except DeviceLost:
                failed += 1
        assert failed <= 1  # After one failure its session has ended.
        assert model.trouble == ""
        assert on_gpu(model, 1).counters.batches

    @pytest.mark.parametrize("pick", ["least_loaded", "round_robin", "key"])
    def test_sessions_leave_a_lost_gpu_for_another(self, make_model: MakeModel, world: Any, pick: str) -> None:
        gpus = SimulatedGpus(2)
        model = make_model(GPU % 2 + option("pick", pick), gpus=gpus)
        model.resize(1)
        gpus.driver(0).lose()
        failed = 0
        for _ in range(200):
            try:
                assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
            except DeviceLost:
                failed += 1
                time.sleep(0.01)
            if {session.place for session in model.group.sessions} == {1}:
                break
        assert failed < 100
        assert {session.place for session in model.group.sessions} == {1}
        assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
        model.resize(3)
        for _ in range(6):
            assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
        assert model.trouble == ""

    def test_nothing_passes_the_gate_unseen_when_the_gpu_is_lost(
        self, make_model: MakeModel, world: Any, graph: DenseGraph
    ) -> None:
        gpus = SimulatedGpus()
        model = make_model(GPU % 1, gpus=gpus)
        gpus.driver(0).lose()
        with contextlib.suppress(DeviceLost):
            ask(model, world, np.arange(9))
        assert model.trouble
        wrong = world.snapshot(graph, 1, scale=1.5)
        with pytest.raises(ParityError, match="golden requests"):
            validate(model.parts, None, wrong, world.golden(), None, options=ModelOptions())

    def test_one_session_without_memory_leaves_the_gpu_to_the_others(self, make_model: MakeModel, world: Any) -> None:
        gpus = SimulatedGpus()
        model = make_model("instance_group { count: 2 }", gpus=gpus)
        gpus.driver(0).run_out()  # Memory runs out while the new session captures.
        model.resize(3)
        assert on_gpu(model).given_up == ""
        for _ in range(30):
            assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
        assert sum(on_gpu(model).counters.batches.values()) > 0

    def test_a_gpu_that_is_not_there_is_a_clear_error(self, make_model: MakeModel) -> None:
        with pytest.raises(ConfigError, match="no GPU can be used: the driver is too old"):
            make_model(GPU % 1, gpus=SimulatedGpus(why_none="the driver is too old"))


@pytest.mark.parametrize("size", [1, 2, 3, 16, 63])
def test_models_of_small_batches(make_model: MakeModel, world: Any, size: int) -> None:
    gpus = SimulatedGpus(schedule="random")
    model = make_model(f"max_batch_size: {size}\n" + GPU % 1, gpus=gpus)
    validate(model.parts, None, model.history.current, world.golden(), None, options=ModelOptions())
    for rows in {1, size}:
        assert np.allclose(ask(model, world, np.arange(rows)), world.score(np.arange(rows)), atol=1e-6)
    assert max(int(bucket) for bucket in on_gpu(model).counters.batches if bucket != "eager") == size
    assert_no_mistake(gpus)


def test_each_output_has_a_tolerance_of_its_own(world: Any) -> None:
    outputs = {
        "score": np.array([[0.2], [0.9]], np.float32),
        "price": np.array([[23_000.0], [4.0]], np.float32),
        "rank": np.array([3, 10**9]),
    }
    golden = replace(world.golden(), outputs=outputs, tolerance=1e-6)
    assert tolerances(golden, "fp32") == {"score": 1e-5, "price": pytest.approx(0.23), "rank": 0.0}
    assert tolerances(golden, "bf16") == {"score": 1e-6, "price": 1e-6, "rank": 0.0}  # validation has widened it


def test_an_old_answer_is_never_given(make_model: MakeModel, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the kernel's write of the stamp, a GPU would answer with the results of another batch."""
    gpus = SimulatedGpus()
    model = make_model(GPU % 1, gpus=gpus)
    ask(model, world, np.arange(9))
    monkeypatch.setattr(SimulatedDriver, "launch", lambda self, graph, stream: None)
    with pytest.raises(DeviceLost, match="answered batch"):
        ask(model, world, np.arange(9))


def test_snapshots_of_one_program_only(make_model: MakeModel, world: Any) -> None:
    model = make_model(GPU % 1, gpus=SimulatedGpus())
    other = replace(Snapshot.of_version(world.published, world.published.graph()))
    with pytest.raises(AssertionError, match="another program"):
        model.parts.score([model.parts.features(world.columns(np.arange(9)), 9)], other)


@pytest.mark.parametrize("call", ["wait", "synchronize"])
def test_the_simulation_would_notice_a_missing_call(
    make_model: MakeModel, world: Any, graph: DenseGraph, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    gpus = SimulatedGpus()
    model = make_model(GPU % 1, gpus=gpus)
    ids = np.arange(9)
    assert np.allclose(ask(model, world, ids), world.score(ids), atol=1e-6)
    assert not gpus.driver(0).errors
    monkeypatch.setattr(SimulatedDriver, call, lambda *_: None)
    with contextlib.suppress(Exception):
        for number in range(1, 5):
            model.history.switch(world.snapshot(graph, number, scale=1.0 + number))
            ask(model, world, ids)
    assert gpus.driver(0).errors or model.trouble
    monkeypatch.undo()
