"""Deltas, rollbacks and canaries while sessions on a simulated GPU answer: each answer is one snapshot's own."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, ask, check_answer
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
        for _ in range(4):  # the replays' graphs are captured meanwhile, the sessions' were before
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
    assert version["gpus"]["0"]["weight_uploads"] >= 11  # a rollback may find its weights still there


def test_the_metrics_page_shows_the_card(live: Live) -> None:
    live.version()
    live.start()
    ask(live.repository, live.world.rows_of(next(iter(live.snapshots.values())), 3))
    with urllib.request.urlopen(f"http://127.0.0.1:{live.server.metrics_port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if line.startswith("emberline_gpu_"))
    labels = f'model="{NAME}",version="1",gpu="0"'
    assert int(values[f'emberline_gpu_batches_total{{{labels},graph="4"}}']) > 0
    assert int(values[f"emberline_gpu_copied_bytes_total{{{labels}}}"]) > 0
    assert values[f"emberline_gpu_weight_uploads_total{{{labels}}}"] == "1"
    assert values[f"emberline_gpu_given_up{{{labels}}}"] == "0"


def test_a_new_version_takes_the_card_over_and_the_old_one_leaves_nothing_there(
    live: Live, gpus: SimulatedGpus
) -> None:
    live.version()
    live.start()
    driver = gpus.driver(0)
    driver.enter_thread()
    one = driver.memory().device
    second = live.version(slope=2.0)
    live.reaches(second)
    live.until(lambda: driver.memory().device == one)
    assert live.served() is second


def test_a_refused_delta_leaves_the_card_as_it_was(live: Live, gpus: SimulatedGpus) -> None:
    start = live.version()
    live.start()
    live.world.publish_delta(start, changed={"item": [3]}, wrong_by=0.5)
    live.until(lambda: live.refused())
    assert "golden requests" in live.refused()[0]
    assert live.served() is start


def test_a_card_without_memory_for_a_replay_refuses_no_delta_for_good(live: Live, gpus: SimulatedGpus) -> None:
    start = live.version()
    live.start()
    gpus.driver(0).run_out()  # the first thing that computes is the replay
    delta = live.delta(start)
    live.reaches(delta)
    assert live.refused() == []


def test_a_lost_card_is_told_to_who_looks_after_the_server(live: Live, gpus: SimulatedGpus) -> None:
    live.version()
    live.start()
    assert live.repository.is_ready()
    assert live.repository.is_live()
    rows = live.world.rows_of(next(iter(live.snapshots.values())), 3)
    for driver in gpus.drivers:
        driver.lose()
    for _ in range(20):  # until each card had its turn
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
