"""Publishes deltas of the model of conftest.py without a trainer: changed item rows, and the answers after each."""

from __future__ import annotations

import copy
import secrets
from pathlib import Path
from typing import Any

import numpy as np

from storage import Golden, open_version
from storage.checkpoint import GraphOutput
from storage.checkpoint.delta_writer import DeltaTable, write_delta
from storage.features import FeatureSpec, column_from_rows
from tests.integration.serving.conftest import DIM, GOLDEN, SPEC, Published


class Line:
    """Chain of snapshots over a version, and the reference answers of each.

    snapshots[0] is the version itself.
    """

    def __init__(self, published: Published, version_dir: Path) -> None:
        version = open_version(version_dir)
        self.version_dir = version_dir
        self.snapshots = [version.snapshot]
        self.worlds = [published]
        self._weights = {name: value.numpy() for name, value in version.graph().weights().items()}
        self._outputs = version.manifest.graph.outputs

    def publish(self, *, seed: int, changed: int = 20, parent: int = -1, wrong_by: float = 0.0) -> str:
        """Publishes the next delta, chained onto the snapshot at `parent`.

        wrong_by: falsifies its golden scores.
        """
        rng = np.random.default_rng(seed)
        world = copy.copy(self.worlds[parent])
        ids = np.sort(rng.choice(np.array(world.items), changed, replace=False))
        rows = rng.standard_normal((changed, DIM)).astype(np.float32)
        world.rows = {**world.rows, "item": {**world.rows["item"], **dict(zip(ids.tolist(), rows, strict=True))}}
        snapshot, sequence = secrets.token_hex(16), len(self.snapshots)
        previous = self.snapshots[parent]
        write_delta(
            self.version_dir,
            snapshot=snapshot,
            base=self.snapshots[0],
            parent=previous,
            applies_to=[previous],
            from_sequence=self.snapshots.index(previous),
            sequence=sequence,
            tables=[_table("user"), _table("item", ids, rows), _table("tag")],
            weights=self._weights,
            weight_dtypes={},
            golden=_golden(world, wrong_by),
            outputs=tuple(GraphOutput(name=entry.name, shape=entry.shape) for entry in self._outputs),
        )
        self.snapshots.append(snapshot)
        self.worlds.append(world)
        return snapshot

    def name(self, index: int = -1) -> str:
        """Returns the VERSION.SEQUENCE of one of the snapshots."""
        return f"{self.version_dir.name}.{range(len(self.snapshots))[index]}"

    def scores(self, rows: list[dict[str, Any]], snapshot: str) -> np.ndarray:
        """Returns a snapshot's scores for `rows`, output `score`, (B,)."""
        scores: np.ndarray = self.worlds[self.snapshots.index(snapshot)].score(rows)["score"][:, 0]
        return scores


def _table(name: str, ids: np.ndarray | None = None, rows: np.ndarray | None = None) -> DeltaTable:
    none = np.zeros(0, np.int64)
    ids = none if ids is None else ids
    rows = np.zeros((0, DIM), np.float32) if rows is None else rows
    return DeltaTable(name, DIM, ids, rows, np.full(len(ids), 9, np.uint8), none)


def _golden(world: Published, wrong_by: float) -> Golden:
    raw = world.random_rows(GOLDEN, 1)
    columns = {
        e.name: column_from_rows(e, [row[e.name] for row in raw]) for e in FeatureSpec.model_validate(SPEC).inputs
    }
    outputs = {name: values + np.float32(wrong_by) for name, values in world.score(raw).items()}
    return Golden(columns, GOLDEN, outputs, 1e-5)
