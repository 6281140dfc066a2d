"""Claims about the whole step of a DLRM: forward, loss, backward and both optimizers, beside torch and TorchRec."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.catalog import Run
from benchmarks.measure import Contestant, per_second
from benchmarks.peers import PeerMissingError
from benchmarks.peers.training import TrainingPeers, training_peers
from benchmarks.train_world import BATCHES, LR, QUICK_ROWS, ROWS, Cores, TrainWorld, eps_of, sparse_optimizer
from storage.features import FeatureSpec
from trainer.embedding import EmbeddingTable, RowMemory, SparseRule
from trainer.model_config import DlrmConfig
from trainer.models import Dlrm, FeatureEmbeddings

DENSE = 13
DIMS, QUICK_DIMS = (16, 64), (16,)
CORES = 2
TORCH, TORCHREC, TABLE_BATCHED = "torch EmbeddingBag, sparse", "TorchRec, fused", "FBGEMM in plain torch"
KINDS = {TORCH: "torch", TORCHREC: "torchrec", TABLE_BATCHED: "fbgemm"}
OVER_TORCH, OVER_TORCHREC = 2.5, 1.7
CHECKED_STEPS = 5
# What rounding may change of these steps, by their norm. It is 1.2% with Adam at dim 64, also of dense weights whose
# gradients are almost 0; an optimizer with another rule differs by tens of percent.
OTHER_STEPS = 0.03
_SAMPLES = 1e-3
_MAX_S = 60.0


def step(run: Run) -> None:
    """Measures a DLRM with the default layers at every dim, with Adagrad beside all peers, with Adam beside torch."""
    world = DlrmBatches(run.size(ROWS, QUICK_ROWS))
    run.report.remark(
        f"step: a DLRM of {DENSE} dense values and {world.tables} tables of {world.rows:,} rows, default layers"
    )
    rivals: dict[SparseRule, dict[str, float | None]] = {
        "adagrad": {TORCH: OVER_TORCH, TORCHREC: OVER_TORCHREC, TABLE_BATCHED: None},
        "adam": {TORCH: OVER_TORCH},
    }
    with training_peers(run) as peers:
        peers.take(world.numbers, np.stack(world.dense), np.stack(world.labels))
        for dim in QUICK_DIMS if run.quick else DIMS:
            for rule, targets in rivals.items():
                for name, target in targets.items():
                    what = f"DLRM step {rule} d{dim}"
                    if name != TORCH and not peers.has_fbgemm:
                        continue
                    if run.is_late(what) or run.lacks_memory(2 * world.row_memory_bytes(dim, 2 * dim), what):
                        continue
                    beside(run, world, peers, rule, dim, name, target)


class DlrmBatches(TrainWorld):
    """A world with dense values and labels."""

    def __init__(self, rows: int, *, batches: int = BATCHES) -> None:
        super().__init__(rows, batches=batches)
        rng = np.random.default_rng(7)
        shape = (len(self.numbers), self.batch)
        #: (B, C) for each batch.
        self.dense = list(rng.standard_normal((*shape, DENSE), np.float32))
        #: (B, 1) for each batch.
        self.labels = list((rng.random((*shape, 1)) < 0.25).astype(np.float32))
        for inputs, dense in zip(self.inputs, self.dense, strict=True):
            inputs["dense"] = torch.from_numpy(dense)


class Training:
    """A DLRM of the zoo over filled tables, stepped as the trainer does. memory: bounds the DRAM of the tables."""

    def __init__(self, world: DlrmBatches, dim: int, rule: SparseRule, memory: RowMemory | None = None) -> None:
        tables = {
            f"t{number}": EmbeddingTable(f"t{number}", dim, optimizer=rule, initial_accumulator=0.0, memory=memory)
            for number in range(world.tables)
        }
        self.tables = list(tables.values())
        for number, table in enumerate(self.tables):
            world.fill(table, number)
        torch.manual_seed(1)
        self._model = Dlrm(FeatureEmbeddings(spec(world.tables), tables), DlrmConfig(type="dlrm"))
        self._dense = torch.optim.Adam(self._model.parameters(), lr=1e-3, fused=True)
        self._sparse = sparse_optimizer(rule, self.tables)
        self._inputs = world.inputs
        self._labels = [torch.from_numpy(each) for each in world.labels]

    def dense_weights(self) -> dict[str, np.ndarray]:
        """Returns the weights of both MLPs by name."""
        return {name: weights.detach().numpy().copy() for name, weights in self._model.named_parameters()}

    def step(self, turn: int) -> float:
        """Trains batch `turn`; returns its loss."""
        index = turn % len(self._inputs)
        self._dense.zero_grad()
        logits = self._model.logits(self._inputs[index])
        loss = functional.binary_cross_entropy_with_logits(logits, self._labels[index])
        value = float(loss.detach())
        loss.backward()  # type: ignore[no-untyped-call]
        self._dense.step()
        self._sparse.step()
        return value


def spec(tables: int) -> FeatureSpec:
    """Returns the features c0, c1, ..., each with a table of its own, and a dense group."""
    features: list[dict[str, Any]] = [
        {
            "name": f"c{table}",
            "inputs": ["ids"],
            "transforms": [{"op": "select", "index": table}],
            "output": "ids",
            "table": f"t{table}",
            "pooling": "sum",
        }
        for table in range(tables)
    ]
    features.append({"name": "dense", "inputs": ["dense"], "output": "dense"})
    inputs = [
        {"name": "ids", "dtype": "INT64", "width": tables},
        {"name": "dense", "dtype": "FP32", "width": DENSE},
    ]
    return FeatureSpec.model_validate({"inputs": inputs, "features": features})


def beside(
    run: Run, world: DlrmBatches, peers: TrainingPeers, rule: SparseRule, dim: int, name: str, target: float | None
) -> None:
    """Measures our step beside one peer's."""
    cores = Cores()
    count = min(CORES, cores.count)
    ours = Training(world, dim, rule)
    try:
        version = peers.build(
            KINDS[name],
            optimizer=rule,
            lr=LR,
            eps=eps_of(rule),
            rows=world.rows,
            dim=dim,
            model=ours.dense_weights(),
        )
    except PeerMissingError as missing:
        run.report.remark(f"{name}: {missing}")
        return
    run.report.remark(f"{name}: version {version}, row numbers instead of ids")
    check_same(world, ours, peers, f"{name}, {rule} d{dim}")
    contestants: dict[str, Contestant] = {
        "ours": cores.on(count, per_second(ours.step, world.batch, **run.steady)),
        name: peers.contestant(world.batch, count, **run.steady),
    }
    samples = run.interleave(contestants, max_s=_MAX_S)
    run.report.compare(
        f"DLRM step, {rule} d{dim}, batch {world.batch:,}, {count} cores",
        samples,
        name,
        unit="k samples/s",
        scale=_SAMPLES,
        target=target,
    )
    run.settle(samples)


def check_same(world: DlrmBatches, ours: Training, peers: TrainingPeers, what: str) -> None:
    """Raises AssertionError unless both have the same losses and rows, within what rounding explains.

    The first steps of Adagrad and Adam have one length whatever the gradient's, so a gradient that is nothing but
    rounding moves a value as far as any other: rows are compared by the norm of their difference.
    """
    before = world.rows_of(ours.tables, 0)
    losses = [ours.step(turn) for turn in range(CHECKED_STEPS)]
    theirs = peers.steps(CHECKED_STEPS)
    if not np.allclose(losses, theirs, rtol=1e-4):
        raise AssertionError(f"{what}: the losses are {theirs}, ours are {losses}: no figure counts")
    after = world.rows_of(ours.tables, 0)
    share = float(np.linalg.norm(after - peers.rows(0)) / np.linalg.norm(after - before))
    if not share < OTHER_STEPS:
        raise AssertionError(f"{what}: the steps of the rows differ by {share:.1%}: no figure counts")
