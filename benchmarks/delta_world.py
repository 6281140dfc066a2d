"""Publishes a ranking model over one large table, and deltas of a chosen number of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from loadtest.bodies import binary_body
from loadtest.rows import Tensor as WireTensor
from storage.features import FeatureSpec, column_from_rows
from trainer.embedding import EmbeddingBag, EmbeddingTable
from trainer.publishing.policy import DeltaPolicy
from trainer.publishing.publisher import Publisher

DIM, DENSE, LENGTH = 16, 8, 20
SPEC = {
    "inputs": [
        {"name": "items", "dtype": "INT64", "kind": "list", "max_length": 64},
        {"name": "dense", "dtype": "FP32", "width": DENSE},
    ],
    "features": [
        {"name": "items", "inputs": ["items"], "output": "ids", "table": "item", "pooling": "mean"},
        {"name": "dense", "inputs": ["dense"], "output": "dense"},
    ],
}
# Nothing in the repository is compacted or removed: the benchmark alone decides what it contains.
POLICY = DeltaPolicy(cumulative_every=0, version_every_deltas=0, version_at_share=0.0, keep_deltas=100_000)


class Ranker(nn.Module):
    """Scores the mean of the items' rows and the dense features with an MLP."""

    def __init__(self, table: EmbeddingTable) -> None:
        super().__init__()
        self.items = EmbeddingBag(table, "mean")
        self.top = nn.Sequential(nn.Linear(DIM + DENSE, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        pooled = self.items(inputs["items.values"], inputs["items.offsets"])
        return {"score": torch.sigmoid(self.top(torch.cat([pooled, inputs["dense"]], 1)))}


class DeltaWorld:
    """Publishes a table of `rows` rows (ids 0 to rows - 1) as version 1 of repository/name."""

    def __init__(self, repository: Path, name: str, rows: int, *, seed: int = 1, policy: DeltaPolicy = POLICY) -> None:
        self.name, self.rows = name, rows
        self.rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.table = EmbeddingTable("item", DIM, optimizer="sgd", seed=seed)
        self.module = Ranker(self.table).eval()
        self._assign(np.arange(rows, dtype=np.int64), 0.1)
        spec = FeatureSpec.model_validate(SPEC)
        sample = {
            "items": [self.rng.integers(0, rows, LENGTH).tolist() for _ in range(300)],
            "dense": self.rng.standard_normal((300, DENSE)).astype(np.float32).tolist(),
        }
        columns = {entry.name: column_from_rows(entry, sample[entry.name]) for entry in spec.inputs}
        self.publisher = Publisher(self.module, columns, repository, name=name, spec=spec, policy=policy)
        self.version = self.publisher.publish("version")

    def change(self, rows: int) -> None:
        """Moves the rows of `rows` ids a little, and the dense weights."""
        ids = np.sort(self.rng.choice(self.rows, rows, replace=False)).astype(np.int64)
        self._assign(ids, 0.1)
        with torch.no_grad():
            for weight in self.module.parameters():
                weight.add_(torch.randn_like(weight) * 1e-4)

    def bodies(self, count: int, batch: int) -> list[tuple[bytes, int]]:
        """Returns `count` binary requests of `batch` rows with Zipf-like ids: bodies and header lengths."""
        found = []
        for _ in range(count):
            ids = np.minimum(self.rng.zipf(1.2, (batch, LENGTH)) - 1, self.rows - 1).astype(np.int64)
            dense = self.rng.standard_normal((batch, DENSE)).astype(np.float32)
            found.append(binary_body([WireTensor("items", "INT64", ids), WireTensor("dense", "FP32", dense)]))
        return found

    def _assign(self, ids: np.ndarray[Any, Any], scale: float) -> None:
        count = len(ids)
        rows = (self.rng.standard_normal((count, DIM)) * scale).astype(np.float32)
        stamps = np.full(count, self.table.stamp, np.uint32)
        self.table.restore(ids, rows, np.empty((count, 0), np.float32), np.full(count, 9, np.uint32), stamps)
