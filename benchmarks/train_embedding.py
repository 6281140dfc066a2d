"""Claims about embeddings alone: lookup, gradients, update of 26 tables, beside FBGEMM and the bandwidth of memory."""

from __future__ import annotations

from typing import get_args

import numpy as np

from benchmarks.catalog import Run
from benchmarks.measure import Contestant, per_second
from benchmarks.peers import PeerMissingError
from benchmarks.peers.training import TrainingPeers, training_peers
from benchmarks.train_world import LR, QUICK_ROWS, ROWS, Cores, Embeddings, TrainWorld, copied_bytes, eps_of
from trainer.embedding import SparseRule

# Targets of the ratio to a peer, by dim.
OVER_PEER = {16: 3.0, 64: 2.5, 128: 2.5}
QUICK_DIMS = (16, 64)
TWO_CORES = 1.8
# Those that a peer has as well. FBGEMM has no Adam for processors; torch's sparse gradients have.
PEERS: dict[SparseRule, str] = {"sgd": "fbgemm", "adagrad": "fbgemm", "rowwise_adagrad": "fbgemm", "adam": "torch"}
NAMES = {"fbgemm": "FBGEMM", "torch": "torch EmbeddingBag, sparse"}
CHECKED_STEPS = 3
_SAMPLES = 1e-3
_MAX_S = 60.0


def embedding(run: Run) -> None:
    """Measures every optimizer at every dim; those that have no peer beside the machine alone."""
    world = TrainWorld(run.size(ROWS, QUICK_ROWS))
    run.report.remark(
        f"embedding: {world.tables} tables of {world.rows:,} rows, batch {world.batch:,}, one id a table and sample, "
        f"{world.distinct / (world.tables * world.batch):.0%} of a batch's ids differ"
    )
    with training_peers(run) as peers:
        peers.take(world.numbers)
        copy = copied_bytes(run)
        for rule in rules(run.quick):
            for dim in QUICK_DIMS if run.quick else OVER_PEER:
                what = f"embedding {rule} d{dim}"
                if not run.is_late(what) and not run.lacks_memory(2 * world.row_memory_bytes(dim, 2 * dim), what):
                    one_rule(run, world, peers, rule, dim, copy)


def rules(quick: bool) -> list[SparseRule]:
    """Returns the optimizers to measure, those with a peer first."""
    others: list[SparseRule] = [rule for rule in get_args(SparseRule) if rule not in PEERS]
    return [*PEERS] if quick else [*PEERS, *others]


def one_rule(run: Run, world: TrainWorld, peers: TrainingPeers, rule: SparseRule, dim: int, copy: Contestant) -> None:
    """Measures one optimizer at one dim. copy: gives the bytes a second of a copy."""
    what = f"embedding {rule} d{dim}, batch {world.batch:,}"
    cores = Cores()
    ours = Embeddings(world, dim, rule)
    samples_of = per_second(ours.step, world.batch, **run.steady)
    contestants: dict[str, Contestant] = {"ours": cores.on(1, samples_of)}
    if cores.count > 1:
        contestants["two cores"] = cores.on(2, per_second(ours.step, world.batch, **run.steady))
    peer = peer_of(run, world, peers, rule, ours)
    if peer:
        contestants[peer] = peers.contestant(world.batch, 1, **run.steady)
    contestants["copy"] = cores.on(1, copy)
    samples = run.interleave(contestants, max_s=_MAX_S)
    batch_bytes = world.bytes_of_batch(dim, ours.slots)
    samples.add("memory bandwidth", lambda figures: figures["copy"] / batch_bytes * world.batch)
    unit = "k samples/s"
    if peer:
        run.report.compare(f"{what}, 1 core", samples, peer, unit=unit, scale=_SAMPLES, target=OVER_PEER[dim])
    run.report.compare(f"{what}, 1 core", samples, "memory bandwidth", unit=unit, scale=_SAMPLES)
    if cores.count > 1:
        run.report.compare(
            f"{what}, 2 cores", samples, "ours", ours="two cores", unit=unit, scale=_SAMPLES, target=TWO_CORES
        )
    run.settle(samples)


def peer_of(run: Run, world: TrainWorld, peers: TrainingPeers, rule: SparseRule, ours: Embeddings) -> str:
    """Builds the peer with this optimizer and checks it against ours; returns its name, or an empty string."""
    kind = PEERS.get(rule)
    if kind is None or (kind == "fbgemm" and not peers.has_fbgemm):
        peers.drop()
        return ""
    dim = ours.tables[0].dim
    try:
        version = peers.build(kind, optimizer=rule, lr=LR, eps=eps_of(rule), rows=world.rows, dim=dim)
    except PeerMissingError as missing:
        run.report.remark(f"{NAMES[kind]}, {rule}: {missing}")
        return ""
    run.report.remark(f"{NAMES[kind]}: version {version}, row numbers instead of ids")
    peers.steps(CHECKED_STEPS)
    for turn in range(CHECKED_STEPS):
        ours.step(turn)
    check_same(f"{NAMES[kind]}, {rule} d{dim}", world.rows_of(ours.tables, 0), peers.rows(0))
    return NAMES[kind]


def check_same(what: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Raises AssertionError unless the rows of both are equal within rounding."""
    if not np.allclose(ours, theirs, rtol=1e-3, atol=1e-6):
        worst = float(np.abs(ours - theirs).max())
        raise AssertionError(f"{what}: rows differ by {worst:.3g} after training the same batches: no figure counts")
