"""Trains a model one step at a time, and follows its repository with a reference that keeps rows in dicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from storage.checkpoint import PublishedDelta, list_deltas, open_delta, open_version
from storage.features import Column, FeatureSpec, column_from_lists, column_from_numpy
from trainer import Embedding, EmbeddingBag, EmbeddingTable, SparseSGD
from trainer.publishing import DeltaPolicy, Lineage, Publisher

SPEC = FeatureSpec.parse(
    {
        "inputs": [
            {"name": "user", "dtype": "INT64"},
            {"name": "tags", "dtype": "INT64", "kind": "list"},
            {"name": "words", "dtype": "BYTES", "kind": "list"},
            {"name": "price", "dtype": "FP32"},
        ],
        "features": [
            {"name": "user", "inputs": ["user"], "output": "ids", "table": "users"},
            {"name": "tags", "inputs": ["tags"], "output": "ids", "table": "tags", "pooling": "none", "length": 3},
            {
                "name": "words",
                "inputs": ["words"],
                "transforms": [{"op": "hash"}],
                "output": "ids",
                "table": "words",
                "pooling": "mean",
            },
            {"name": "price", "inputs": ["price"], "output": "dense"},
        ],
    }
)
CHAIN = DeltaPolicy(cumulative_every=0, version_every_deltas=0, version_at_share=0.0)
Row = tuple[int, Sequence[int], Sequence[str], float]


class Model(nn.Module):
    """Model with bags, a sequence, a dense column, weights, a buffer that is saved and one that is not."""

    recent: Tensor

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.tables = {name: EmbeddingTable(name, dim, optimizer="sgd", seed=1) for name in ("users", "tags", "words")}
        self.user = EmbeddingBag(self.tables["users"])
        self.tags = Embedding(self.tables["tags"], 3)
        self.words = EmbeddingBag(self.tables["words"], "mean")
        self.norm = nn.BatchNorm1d(3 * dim + 1)
        self.top = nn.Linear(3 * dim + 1, 1)
        self.register_buffer("recent", torch.zeros(1), persistent=False)

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        rows, _ = self.tags(inputs["tags.values"], inputs["tags.offsets"])
        parts = [
            self.user(inputs["user.values"], inputs["user.offsets"]),
            rows.sum(dim=1),
            self.words(inputs["words.values"], inputs["words.offsets"]),
            inputs["dense"],
        ]
        return torch.sigmoid(self.top(self.norm(torch.cat(parts, dim=1))) + self.recent)


def columns(rows: Sequence[Row]) -> dict[str, Column]:
    """Returns rows as raw columns."""
    return {
        "user": column_from_numpy("INT64", np.array([row[0] for row in rows], np.int64)),
        "tags": column_from_lists("INT64", [list(row[1]) for row in rows]),
        "words": column_from_lists("BYTES", [[word.encode() for word in row[2]] for row in rows]),
        "price": column_from_numpy("FP32", np.array([row[3] for row in rows], np.float32)),
    }


def some_rows(count: int, seed: int, *, low: int = 0, high: int = 200) -> list[Row]:
    """Makes rows of the users from low to high, with tags and words."""
    rng = np.random.default_rng(seed)
    return [
        (
            int(rng.integers(low, high)),
            rng.integers(0, 50, rng.integers(0, 5)).tolist(),
            [f"word-{n}" for n in rng.integers(low, high, rng.integers(0, 3))],
            float(rng.normal()),
        )
        for _ in range(count)
    ]


class Training:
    """Trains a model with its optimizers, one step a call."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Model()
        self.sparse = SparseSGD(self.model.tables.values(), lr=0.5)
        self.dense = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.steps = 0

    def step(self, rows: Sequence[Row]) -> dict[str, Column]:
        """Trains on rows, two or more; returns them as raw columns."""
        from storage.features import FeatureEngine
        from trainer.data import to_inputs

        raw = columns(rows)
        self.model.train()
        self.steps += 1
        scores = self.model(to_inputs(FeatureEngine(SPEC).run(raw, len(rows))))
        labels = torch.tensor([[float((row[0] + self.steps) % 2)] for row in rows])
        self.dense.zero_grad()
        torch.nn.functional.binary_cross_entropy(scores, labels).backward()
        self.dense.step()
        self.sparse.step()
        self.model.recent += 0.01
        return raw

    def tables(self) -> dict[str, dict[int, bytes]]:
        """Returns all rows: table -> id -> the row's bytes."""
        return {
            name: as_dict(table.export_rows()[0], table.export_rows()[1]) for name, table in self.model.tables.items()
        }


def as_dict(ids: np.ndarray, rows: np.ndarray) -> dict[int, bytes]:
    return {int(number): row.tobytes() for number, row in zip(ids, rows, strict=True)}


class Follower:
    """Reference for a server that takes every snapshot: rows and dense weights of one snapshot."""

    def __init__(self, version: Path) -> None:
        opened = open_version(version)
        self.snapshot = opened.snapshot
        self.rows = {
            spec.name: {i: r for shard in opened.shards(spec.name) for i, r in as_dict(shard.ids, shard.rows).items()}
            for spec in opened.tables
        }
        self.weights = opened.graph().weights()

    def copy(self) -> Follower:
        """Returns an independent copy at the same snapshot."""
        other = copy(self)
        other.rows = {name: dict(rows) for name, rows in self.rows.items()}
        return other

    def apply(self, delta: PublishedDelta) -> None:
        """Applies a delta as a server does: only to a snapshot that the delta applies to."""
        assert self.snapshot in delta.applies_to
        for spec in delta.tables:
            for shard in delta.shards(spec.name):
                self.rows[spec.name].update(as_dict(shard.ids, shard.rows))
            for number in delta.removed(spec.name).tolist():
                self.rows[spec.name].pop(number, None)
        self.weights = delta.weights()
        self.snapshot = delta.snapshot

    def agrees(self, training: Training) -> bool:
        """Returns whether rows and weights equal the trainer's, bit for bit."""
        model = training.model
        live = {f"state.container.module.{name}": value for name, value in model.state_dict().items()}
        live["constant.container.module.recent"] = model.recent
        same = all(torch.equal(value, live[name]) for name, value in self.weights.items() if name in live)
        return same and self.rows == training.tables() and len(set(self.weights) & set(live)) >= 7


def publisher_of(
    training: Training, folder: Path, policy: DeltaPolicy = CHAIN, lineage: Lineage | None = None
) -> Publisher:
    """Returns a publisher into `folder`, fresh or as a resumed run has it."""
    return Publisher(
        training.model, columns(some_rows(300, 1)), folder, name="m", spec=SPEC, policy=policy, lineage=lineage
    )


def publish_first(folder: Path) -> None:
    """Publishes version 1 after one step, and saves the lineage.

    Exporting a graph takes long, so tests share the result.
    """
    publisher = publisher_of(first_step(), folder)
    publisher.publish()
    (folder / "lineage.json").write_text(json.dumps(publisher.lineage.to_json_value()))


def first_step() -> Training:
    """Returns a training after the one step that version 1 is made of."""
    training = Training()
    training.step(some_rows(300, 1))
    return training


def go_on(folder: Path, policy: DeltaPolicy = CHAIN) -> tuple[Training, Publisher]:
    """Returns a training and a publisher that continue after version 1 in `folder`.

    folder: a copy of what publish_first made.
    """
    training = first_step()
    for table in training.model.tables.values():
        table.advance()  # Publishing does the same.
    lineage = Lineage.from_json_value(json.loads((folder / "lineage.json").read_text()))
    return training, publisher_of(training, folder, policy, lineage)


def deltas_of(version: Path) -> list[PublishedDelta]:
    return [open_delta(version / "deltas" / f"{number:06d}") for number in list_deltas(version)]


def scores(version: Path, follower: Follower, raw: dict[str, Column], count: int) -> np.ndarray:
    """Computes scores from a follower's rows alone.

    Uses dicts, float64 sums, and the version's graph on the follower's weights.
    """
    from storage.features import FeatureEngine

    opened = open_version(version)
    features = FeatureEngine(opened.spec).run(raw, count)
    graph = opened.graph().with_weights(follower.weights)
    tensors = []
    for entry in graph.inputs:
        if entry.kind == "dense":
            tensors.append(torch.from_numpy(features.dense[entry.source]))
            continue
        feature = opened.spec.feature(entry.source)
        bags = features.ids[entry.source]
        lists = [bags.values[a:b].tolist() for a, b in zip(bags.offsets, bags.offsets[1:], strict=False)]
        if entry.kind == "lengths":
            tensors.append(torch.tensor([min(len(ids), feature.length) for ids in lists]))
            continue
        known = follower.rows[feature.table]
        zero = np.zeros(entry.shape[-1])
        found = [
            [np.frombuffer(known[i], np.float32).astype(float) if i in known else zero for i in ids] for ids in lists
        ]
        made: list[Any]
        if entry.kind == "rows":
            made = [(bag[: feature.length] + [zero] * feature.length)[: feature.length] for bag in found]
        else:
            divide = [max(len(bag), 1) if feature.pooling == "mean" else 1 for bag in found]
            made = [sum(bag, zero) / n for bag, n in zip(found, divide, strict=True)]
        tensors.append(torch.from_numpy(np.array(made, dtype=np.float32)))
    return graph.run(tensors)[0].numpy()
