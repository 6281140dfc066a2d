"""Deltas, rollbacks and canaries while sessions on a simulated GPU answer: each answer is one snapshot's own."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emberline.cli.snapshots import beside
from storage.errors import DeviceOutOfMemory
from storage.hbm.gpus import gpus_of
from storage.tiers.tiered import TieredStore
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted, ask, check_answer, columns_of
from tests.simulated_gpu import SimulatedGpus

GROUP = "instance_group { kind: KIND_GPU count: 3 }"


@pytest.fixture(params=[("lazy", 1), ("random", 1), ("random", 2)], ids=["lazy", "random", "two that share rows"])
def gpus(request: pytest.FixtureRequest) -> SimulatedGpus:
    schedule, count = request.param
    return SimulatedGpus(count, schedule=schedule, seed=4)


@pytest.fixture
def live(tmp_path: Path, gpus: SimulatedGpus) -> Iterator[Live]:
    with Live(tmp_path, gpus=gpus) as running:
        placement = "shard" if len(gpus.drivers) > 1 else "replicate"
        running.world.configure(GROUP, retain_snapshots=3, hbm_placement=placement)
        yield running
    for driver in gpus.drivers:
        if not driver.lost:
            driver.enter_thread()
            driver.finish()
        assert not driver.errors


@pytest.mark.slow
def test_deltas_and_rollbacks_under_load(live: Live, gpus: SimulatedGpus) -> None:
    newest = live.version()
    live.start()
    driver = gpus.driver(0)
    driver.enter_thread()
    stop = threading.Event()
    wrong: list[BaseException] = []
    answered = [0] * 4

    def call(number: int) -> None:
        rng = np.random.default_rng(number)
        rows = live.world.rows_of(next(iter(live.snapshots.values())), 40)
        while not stop.is_set():
            first = int(rng.integers(0, 30))
            part = rows[first : first + int(rng.integers(1, 10))]
            try:
                check_answer(ask(live.repository, part), part, live.snapshots)
            except BaseException as error:
                wrong.append(error)
                return
            answered[number] += 1

    callers = [threading.Thread(target=call, args=(number,)) for number in range(len(answered))]
    for caller in callers:
        caller.start()
    try:
        for _ in range(4):  # The replays' graphs are captured here; the sessions' graphs were captured before.
            newest = live.delta(newest)
            live.reaches(newest)
        captured, taken = driver.counts["capture"], (driver.memory().device, driver.memory().pinned)
        driver.forbid_allocation()
        for _ in range(6):
            newest = live.delta(newest)
            live.reaches(newest)
        live.repository.rollback(NAME, steps=2)
        assert live.served() is not newest
        live.repository.resume(NAME)
        live.reaches(newest)
        live.until(lambda: min(answered) > 20 or wrong)
    finally:
        driver.forbid_allocation(False)
        stop.set()
        for caller in callers:
            caller.join()
    assert not wrong
    driver.enter_thread()
    assert driver.counts["capture"] == captured
    assert (driver.memory().device, driver.memory().pinned) == taken
    report = live.repository.sessions(NAME)
    (version,) = report["versions"]
    assert {session["device"] for session in version["sessions"]} == {f"cuda:{info.index}" for info in gpus.infos}
    assert version["gpus"]["0"]["given_up"] == ""
    assert version["gpus"]["0"]["on_processor"] == 0
    assert version["gpus"]["0"]["weight_uploads"] >= 11  # A rollback may find its weights still on the GPU.


def metrics(live: Live, prefix: str) -> dict[str, float]:
    """Returns values by name and labels, in the order of their names, as the server's page has them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{live.server.metrics_port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if line.startswith(prefix))
    return {name: float(value) for name, value in samples}


@pytest.mark.slow
def test_the_metrics_page_shows_the_gpu(live: Live) -> None:
    live.version()
    live.start()
    ask(live.repository, live.world.rows_of(next(iter(live.snapshots.values())), 3))
    values = metrics(live, "emberline_gpu_")
    labels = f'gpu="0",model="{NAME}",version="1"'
    assert values[f'emberline_gpu_batches_total{{gpu="0",graph="4",model="{NAME}",version="1"}}'] > 0
    assert values[f"emberline_gpu_copied_bytes_total{{{labels}}}"] > 0
    assert values[f"emberline_gpu_weight_uploads_total{{{labels}}}"] == 1
    assert values[f"emberline_gpu_given_up{{{labels}}}"] == 0


class TestMetricsOfRows:
    """Tests the metrics of a GPU's cache of rows.

    The tables have 67 users and 259 items, and there is no id 10**9.
    """

    @pytest.fixture(params=["lazy", "random"])
    def gpus(self, request: pytest.FixtureRequest) -> SimulatedGpus:
        """Simulates one GPU, to which all lookups of a request go."""
        return SimulatedGpus(schedule=request.param, seed=4)

    @pytest.fixture
    def newest(self, live: Live) -> Planted:
        """Serves a version with all its rows on the GPU."""
        newest = live.version()
        live.start()
        plugged = gpus_of(self.store(live))
        assert plugged.wait_filled(60)
        plugged.tiers[0].settle_after_s = 600.0
        return newest

    @staticmethod
    def store(live: Live) -> TieredStore:
        store: TieredStore = live.repository.get(NAME).parts.store
        return store

    @staticmethod
    def of_gpu(live: Live) -> dict[str, int]:
        """Returns the GPU's samples by name, without the labels that all of them have."""
        found = {}
        for name, value in metrics(live, "emberline_hbm_").items():
            shown = name.removeprefix("emberline_hbm_")
            for label in (f'gpu="0",model="{NAME}",', 'version="1"'):
                assert label in shown
                shown = shown.replace(label, "")
            found[shown.replace("{", ",").strip(",}")] = int(value)
        return found

    def rise(self, live: Live, before: dict[str, int]) -> dict[str, int]:
        """Returns the samples that differ from before, and by how much."""
        return {name: value - before[name] for name, value in self.of_gpu(live).items() if value != before[name]}

    def test_lookups_and_misses_are_those_of_each_table(self, live: Live, newest: Planted) -> None:
        before = self.of_gpu(live)
        tier = gpus_of(self.store(live)).tiers[0]
        assert tier.replica is not None
        names = ("rows", "hits_total", "misses_total", "admitted_total")
        of_tables = {f'{name},table="{table}"' for name in names for table in ("user", "item")}
        assert set(before) == {"bytes", "capacity_rows", "snapshots", "evicted_total", "given_up"} | of_tables
        assert before["bytes"] == tier.replica.device_bytes > 0
        assert before["capacity_rows"] == sum(slab.cache.capacity_rows for slab in tier.replica.slabs) >= 67 + 259
        assert (before["snapshots"], before["evicted_total"]) == (1, 0)
        assert (before['rows,table="user"'], before['rows,table="item"']) == (67, 259)
        assert (before['admitted_total,table="user"'], before['admitted_total,table="item"']) == (67, 259)
        rows: list[dict[str, Any]] = [
            {"user": 1, "items": [1, 2, 10**9]},
            {"user": 1, "items": None},
            {"user": 10**9, "items": [3, 3, 3, 3]},
        ]
        check_answer(ask(live.repository, rows), rows, live.snapshots)
        assert self.rise(live, before) == {
            'hits_total,table="user"': 2,
            'misses_total,table="user"': 1,
            'hits_total,table="item"': 6,
            'misses_total,table="item"': 1,
        }
        # A user that all rows share is looked up once.
        columns = columns_of([{"user": 2, "items": [item]} for item in (1, 2, 10**9, 5)])
        columns["user"] = columns_of([{"user": 2, "items": None}])["user"]
        before = self.of_gpu(live)
        asyncio.run(live.repository.get(NAME).infer(columns, 4))
        assert self.rise(live, before) == {
            'hits_total,table="user"': 1,
            'hits_total,table="item"': 3,
            'misses_total,table="item"': 1,
        }

    def test_snapshots_beside_the_base_are_counted_and_their_rows_are_not_the_tables(
        self, live: Live, newest: Planted
    ) -> None:
        before = self.of_gpu(live)
        live.reaches(live.delta(newest, changed={"item": range(1, 30)}))
        after = self.of_gpu(live)
        assert (before["snapshots"], after["snapshots"]) == (1, 2)
        assert {name: after[name] for name in before if name.startswith("rows")} == {
            'rows,table="user"': 67,
            'rows,table="item"': 259,
        }
        tier = gpus_of(self.store(live)).tiers[0]
        assert tier.stats().rows == 67 + 259 + 29

    def test_a_cache_that_was_given_up_has_nothing_and_its_counters_stay(
        self, live: Live, gpus: SimulatedGpus, newest: Planted
    ) -> None:
        rows = [{"user": 1, "items": [1, 2, 10**9]}]
        ask(live.repository, rows)
        before = self.of_gpu(live)
        driver, plugged = gpus.driver(0), gpus_of(self.store(live))
        driver.enter_thread()
        info = driver.info
        driver.info = replace(info, total_bytes=driver.live_bytes["device"] - 1000)
        with pytest.raises(DeviceOutOfMemory):
            plugged.resize(0, 2 * plugged.tiers[0].hbm_bytes)
        driver.info = info
        assert plugged.tiers[0].trouble
        check_answer(ask(live.repository, rows), rows, live.snapshots)
        state = live.repository.snapshots(NAME)
        (lost,) = state["gpus_given_up"]
        assert (lost["gpu"], lost["what"], lost["reason"]) == (0, "rows", plugged.tiers[0].trouble)
        assert f"GPU 0 holds no rows any more for version 1: {plugged.tiers[0].trouble}" in list(beside(state))
        after = self.of_gpu(live)
        kept = {name: value for name, value in before.items() if name.startswith(("hits", "misses", "admitted"))}
        assert after == {**dict.fromkeys(before, 0), **kept, "given_up": 1}
        assert metrics(live, "emberline_gpu_given_up").popitem()[1] == 0  # The sessions still use the GPU.


@pytest.mark.slow
def test_a_new_version_takes_the_gpu_over_and_the_old_one_leaves_nothing_there(live: Live, gpus: SimulatedGpus) -> None:
    live.version()
    live.start()
    driver = gpus.driver(0)
    driver.enter_thread()
    one = driver.memory().device
    second = live.version(slope=2.0)
    live.reaches(second)
    live.until(lambda: driver.memory().device == one)
    assert live.served() is second


@pytest.mark.slow
def test_a_refused_delta_leaves_the_gpu_as_it_was(live: Live, gpus: SimulatedGpus) -> None:
    start = live.version()
    live.start()
    live.world.publish_delta(start, changed={"item": [3]}, wrong_by=0.5)
    live.until(lambda: live.refused())
    assert "golden requests" in live.refused()[0]
    assert live.served() is start


@pytest.mark.slow
def test_a_gpu_without_memory_for_a_replay_refuses_no_delta_for_good(live: Live, gpus: SimulatedGpus) -> None:
    start = live.version()
    live.start()
    gpus.driver(0).run_out()  # The first computation is the replay.
    delta = live.delta(start)
    live.reaches(delta)
    assert live.refused() == []


@pytest.mark.slow
def test_a_lost_gpu_is_reported_to_who_looks_after_the_server(live: Live, gpus: SimulatedGpus) -> None:
    live.version()
    live.start()
    assert live.repository.is_ready()
    assert live.repository.is_live()
    rows = live.world.rows_of(next(iter(live.snapshots.values())), 3)
    for driver in gpus.drivers:
        driver.lose()
    for _ in range(20):  # Repeated until each GPU has had its turn.
        with pytest.raises(Exception, match=r"is lost|is not ready"):
            ask(live.repository, rows)
        if not live.repository.is_ready():
            break
    assert not live.repository.is_ready()
    assert not live.repository.is_live()
    assert not live.repository.is_model_ready(NAME)
    (entry,) = live.repository.index()
    assert entry.state == "UNAVAILABLE"
    assert "is lost" in entry.reason


def test_a_shadow_scores_on_the_processor_while_a_gpu_answers(live: Live) -> None:
    first = live.version()
    live.start()
    live.repository.pause(NAME)
    tried = live.delta(first)
    live.repository.shadow(NAME, to=tried.name, share=1.0, top_k=3)
    live.until(lambda: live.report()["shadow"]["verdict"] != "loading")
    model = live.repository.get(NAME)

    def on_gpus() -> tuple[int, int]:
        devices = model.parts.devices.models.values()
        batches = sum(sum(each.counters.batches.values()) for each in devices)
        return batches, sum(each.weight_slots.uploads for each in devices)

    batches, uploads = on_gpus()
    rows = live.world.rows_of(first, 12)
    for count in range(1, 6):
        assert check_answer(ask(live.repository, rows), rows, live.snapshots) is first
        live.until(lambda count=count: live.report()["shadow"]["requests"] == count)  # type: ignore[misc]
    assert live.report()["shadow"]["failures"] == 0
    assert on_gpus() == (batches + 5, uploads)  # the requests alone
    assert live.repository.promote_shadow(NAME)["served"]["id"] == tried.id
    assert live.served() is tried
