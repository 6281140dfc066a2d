"""The training benchmark: what it counts as slow, which bytes it says must move, and peers that train as we do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import catalog
from benchmarks.peers import PeerMissingError, environment
from benchmarks.peers.training import TrainingPeers
from benchmarks.report import Report
from benchmarks.traffic import random_ids
from benchmarks.train import PARTS
from benchmarks.train_embedding import PEERS, check_same, rules
from benchmarks.train_growth import figures, step_times
from benchmarks.train_memory import batches, check_none_late, filtered_table, memory, see
from benchmarks.train_step import CHECKED_STEPS, DlrmBatches, Training
from benchmarks.train_step import check_same as check_same_steps
from benchmarks.train_tiers import ids_by_table
from benchmarks.train_world import LR, Cores, Embeddings, TrainWorld, eps_of
from trainer.embedding import RowMemory, SparseRule, optimizer_classes

ROWS, TABLES, BATCH = 300, 3, 32


@pytest.fixture(scope="module")
def world() -> TrainWorld:
    return TrainWorld(ROWS, tables=TABLES, batch=BATCH, batches=4)


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingPeers]:
    """Peers with FBGEMM where it is installed."""
    try:
        python: Path | None = environment.python()
    except PeerMissingError:
        python = None
    with TrainingPeers(tmp_path_factory.mktemp("peers"), python=python) as started:
        yield started


def test_the_parts_have_names_and_every_optimizer_is_measured() -> None:
    assert PARTS == ("memory", "growth", "tiers", "step", "embedding")
    assert set(rules(quick=False)) == set(optimizer_classes())
    assert rules(quick=True) == list(PEERS)
    assert "train" in catalog.BENCHMARKS


def test_bytes_of_a_batch_count_a_row_once(world: TrainWorld) -> None:
    numbers = np.zeros_like(world.numbers)
    same = TrainWorld(ROWS, tables=TABLES, batch=BATCH, batches=4)
    same.numbers = numbers
    assert same.distinct == TABLES
    # Three rows of 4 + 2 values read and written, and 96 times an id, 4 values out and 4 of gradient in.
    assert same.bytes_of_batch(dim=4, slots=2) == 3 * 6 * 8 + 96 * (8 + 16 + 16)
    assert TABLES < world.distinct < TABLES * BATCH


def test_one_slow_step_is_not_a_slow_window_but_several_are() -> None:
    seconds = np.full(100, 1.0)
    seconds[50] = 9.0
    found = figures(seconds)
    assert (found["slowest"], found["single"], found["steady step"]) == (1.0, 9.0, 1.0)
    seconds[51:53] = 9.0
    assert figures(seconds)["slowest"] == 9.0
    seconds[-10:] = 2.0
    assert figures(seconds)["last tenth"] == 2.0


def test_growth_trains_every_id_once() -> None:
    assert len(step_times(random_ids(20_000))) == 2  # of 8,192 ids; the rest makes no whole step


def test_ids_that_fill_a_filter_are_distinct_and_follow_from_their_numbers() -> None:
    ids = np.concatenate(list(batches(0, 200_000)))
    assert len(np.unique(ids)) == 200_000
    assert np.array_equal(np.concatenate(list(batches(70_000, 150_000))), ids[70_000:150_000])


def test_memory_of_a_filter_is_reported_beside_its_bound_and_beside_exact_counters(tmp_path: Path) -> None:
    report = Report("train", quick=True)
    memory(catalog.Run(report, tmp_path, rows=200_000))
    bound, exact, rate = report.rows
    assert bound.ours * 2**20 == filtered_table(200_000).native.filter_bytes
    assert bound.other * 2**20 == pytest.approx(200_000 * 2 * 2**30 / 1e9)
    assert exact.other > 10 * exact.ours
    assert 0 < rate.ours < 3 * rate.other  # of 500 fresh ids, about 5


def test_an_id_that_gets_its_row_too_late_stops_the_measurement() -> None:
    table = filtered_table(100_000)
    with pytest.raises(AssertionError, match="seen 2 times and has no row"):
        check_none_late(table)
    see(table, 0, 100_000)
    check_none_late(table)


def test_contestants_run_on_the_cores_that_they_are_given() -> None:
    cores, threads = Cores(), torch.get_num_threads()
    assert cores.on(1, lambda _: float(torch.get_num_threads()))(0) == 1.0
    assert torch.get_num_threads() == threads
    with pytest.raises(ValueError, match="planted"):
        cores.on(1, fails)(0)
    assert torch.get_num_threads() == threads
    assert Cores().count == cores.count


def fails(_: int) -> float:
    raise ValueError("planted")


@pytest.mark.parametrize("rule", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_peers_train_the_same_rows(world: TrainWorld, peers: TrainingPeers, rule: SparseRule) -> None:
    kinds = ["fbgemm"] * (rule != "adam" and peers.has_fbgemm) + ["torch"] * (rule != "rowwise_adagrad")
    if not kinds:
        pytest.skip("FBGEMM is not installed; python -m benchmarks.peers.environment")
    peers.take(world.numbers)
    for kind in kinds:
        ours = Embeddings(world, 8, rule)
        peers.build(kind, optimizer=rule, lr=LR, eps=eps_of(rule), rows=ROWS, dim=8)
        before = peers.rows(0)
        assert np.array_equal(before, world.rows_of(ours.tables, 0))
        peers.steps(3)
        for turn in range(3):
            ours.step(turn)
        after = peers.rows(0)
        assert not np.allclose(before, after)
        check_same(kind, world.rows_of(ours.tables, 0), after)
        ours.step(3)
        with pytest.raises(AssertionError, match="no figure counts"):
            check_same(kind, world.rows_of(ours.tables, 3), peers.rows(3))


@pytest.mark.parametrize("rule", ["adagrad", "adam"])
def test_peers_train_the_same_model(peers: TrainingPeers, rule: SparseRule) -> None:
    batches = DlrmBatches(ROWS)
    peers.take(batches.numbers, np.stack(batches.dense), np.stack(batches.labels))
    kinds = ["torch", *(["torchrec", "fbgemm"] if rule == "adagrad" and peers.has_fbgemm else [])]
    for kind in kinds:
        ours = Training(batches, 8, rule)
        weights = ours.dense_weights()
        peers.build(kind, optimizer=rule, lr=LR, eps=eps_of(rule), rows=ROWS, dim=8, model=weights)
        check_same_steps(batches, ours, peers, kind)
        ours.step(CHECKED_STEPS)
        with pytest.raises(AssertionError, match="no figure counts"):
            check_same_steps(batches, ours, peers, kind)


def test_a_peer_without_the_optimizer_says_so(world: TrainWorld, peers: TrainingPeers) -> None:
    peers.take(world.numbers)
    with pytest.raises(PeerMissingError, match="ftrl"):
        peers.build("torch", optimizer="ftrl", lr=LR, eps=0.0, rows=ROWS, dim=8)


def test_a_bounded_table_gives_the_rows_of_one_in_dram(world: TrainWorld, tmp_path: Path) -> None:
    dram = Embeddings(world, 8, "adagrad")
    with RowMemory(1 << 20, tmp_path / "rows") as memory:
        bounded = Embeddings(world, 8, "adagrad", memory)
        batches = list(memory.held(world.inputs, ids_by_table))
        for turn, inputs in enumerate(batches):
            dram.step(turn)
            bounded.train(inputs)
        assert np.array_equal(world.rows_of(dram.tables, 0), world.rows_of(bounded.tables, 0))
    assert set(ids_by_table(world.inputs[0])) == {"t0", "t1", "t2"}


def test_a_quick_run_may_take_as_long_as_its_module_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys.modules["benchmarks.train"], "QUICK_S", 1e6)
    left: list[float] = []
    monkeypatch.setattr(sys.modules["benchmarks.train"], "measure", lambda run: left.append(run.left_s()))
    from rich.console import Console

    catalog.run("train", catalog.Options(quick=True), Console(quiet=True), tmp_path)
    assert left[0] > 1e5
