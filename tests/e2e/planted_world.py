"""A model whose answers tell which snapshot each row and each dense weight came from, and what each must answer.

Values of generation g lie in [g, g + 1), for rows as for weights, so an answer made from two snapshots matches none.
The expected answers are computed from Python dicts, in float64, without any of the product's code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from storage.features import FeatureSpec, column_from_rows
from trainer.embedding import Embedding, EmbeddingBag, EmbeddingTable
from trainer.publishing import DeltaPolicy, Publisher
from trainer.publishing.publisher import WantedKind

DIM, LENGTH = 2, 3
EXTREMES = (-(2**63), -1, 0, 2**63 - 1)
ABSENT = 77_777_777
SPEC = {
    "inputs": [
        {"name": "user", "dtype": "INT64"},
        {"name": "items", "dtype": "INT64", "kind": "list", "missing": "null", "max_length": 16},
    ],
    "features": [
        {"name": "user", "inputs": ["user"], "output": "ids", "table": "user", "pooling": "sum"},
        {"name": "liked", "inputs": ["items"], "output": "ids", "table": "item", "pooling": "mean"},
        {
            "name": "recent",
            "inputs": ["items"],
            "output": "ids",
            "table": "item",
            "pooling": "none",
            "length": LENGTH,
        },
    ],
}
# Relative: float32 over sums of a few hundred; another generation differs by a tenth or more.
TOLERANCE = 1e-5

Row = dict[str, Any]


class Planted(nn.Module):
    """parts (B, 3 * DIM): each lookup's values, scaled and shifted by dense weights of the same generation."""

    def __init__(self, tables: dict[str, EmbeddingTable]) -> None:
        super().__init__()
        self.user = EmbeddingBag(tables["user"], "sum")
        self.liked = EmbeddingBag(tables["item"], "mean")
        self.recent = Embedding(tables["item"], LENGTH)
        self.scale = nn.Parameter(torch.ones(3 * DIM))
        self.shift = nn.Parameter(torch.zeros(3 * DIM))

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        rows, _ = self.recent(inputs["recent.values"], inputs["recent.offsets"])
        parts = [
            self.user(inputs["user.values"], inputs["user.offsets"]),
            self.liked(inputs["liked.values"], inputs["liked.offsets"]),
            rows.sum(1),
        ]
        return {"parts": torch.cat(parts, 1) * self.scale + self.shift}


@dataclass(frozen=True)
class Answers:
    """Reference answers of one snapshot, computed from its rows (by table and id) and its dense weights."""

    rows: dict[str, dict[int, np.ndarray]]
    scale: np.ndarray
    shift: np.ndarray

    def parts(self, request: Sequence[Row]) -> np.ndarray:
        """Returns each lookup's values, scaled and shifted: (B, 3 * DIM) float64."""
        zero = np.zeros(DIM)
        out = np.zeros((len(request), 3, DIM))
        for index, row in enumerate(request):
            items = row["items"] or []
            out[index, 0] = self.rows["user"].get(row["user"], zero)
            for place, item in enumerate(items):
                value = self.rows["item"].get(item, zero)
                out[index, 1] += value / len(items)
                if place < LENGTH:
                    out[index, 2] += value
        return out.reshape(len(request), -1) * self.scale + self.shift


class World:
    """Trains nothing: plants rows, publishes them by the product's own way, and remembers every snapshot."""

    def __init__(
        self, repository: Path, name: str, *, ids: int = 400, seed: int = 1, policy: DeltaPolicy | None = None
    ) -> None:
        self.repository, self.name = repository, name
        self.rng = np.random.default_rng(seed)
        self.tables = {table: EmbeddingTable(table, DIM, optimizer="sgd", seed=seed) for table in ("user", "item")}
        self.module = Planted(self.tables).eval()
        self.ids = np.unique(np.concatenate([self.rng.integers(0, 10 * ids, ids), EXTREMES])).astype(np.int64)
        self.generation = 0
        self.answers: dict[str, Answers] = {}
        self.order: list[str] = []
        self.plant(len(self.ids), removed=0)
        sample = [self.row() for _ in range(300)]
        spec = FeatureSpec.model_validate(SPEC)
        columns = {entry.name: column_from_rows(entry, [row[entry.name] for row in sample]) for entry in spec.inputs}
        self.publisher = Publisher(
            self.module, columns, repository, name=name, spec=spec, tolerance=1e-5, policy=policy or DeltaPolicy()
        )

    def plant(self, rows: int, *, removed: int) -> None:
        """Makes a new generation.

        `rows` ids of each table get its values, `removed` others are erased, and all weights move.
        """
        self.generation += 1
        for table in self.tables.values():
            chosen = self.rng.permutation(self.ids)
            changed = np.sort(chosen[:rows])
            values = (self.generation + self.rng.random((len(changed), DIM)) * 0.9).astype(np.float32)
            _assign(table, changed, values)
            if removed:
                table.erase(np.sort(chosen[rows : rows + removed]))
        with torch.no_grad():
            # Scale and shift say the generation on their own, and stay small so that float32 is exact enough.
            self.module.scale.fill_(1.0 + self.generation / 64)
            self.module.shift.copy_(torch.linspace(0, 1, 3 * DIM) + self.generation)

    def publish(self, kind: WantedKind = "auto", **options: Any) -> tuple[str, Path]:
        """Publishes the current generation; returns the snapshot and its folder."""
        # Recorded before it is in the repository: a server may answer from it at once.
        pending = self.publisher.prepare(kind, **options)
        self.note(pending.snapshot)
        return pending.snapshot, self.publisher.write()

    def note(self, snapshot: str) -> None:
        """Remembers what `snapshot` answers: the rows and weights as they are now."""
        rows = {}
        for name, table in self.tables.items():
            ids, values, *_ = table.export_rows()
            rows[name] = dict(zip(ids.tolist(), values.astype(np.float64), strict=True))
        scale, shift = (p.detach().numpy().astype(np.float64) for p in (self.module.scale, self.module.shift))
        self.answers[snapshot] = Answers(rows, scale.copy(), shift.copy())
        self.order.append(snapshot)

    def row(self, rng: np.random.Generator | None = None) -> Row:
        """Returns the row of one request: known ids, an absent one now and then, empty and null lists."""
        rng = rng or self.rng
        pool = np.append(self.ids, ABSENT)
        items = rng.choice(pool, rng.integers(0, LENGTH + 3)).tolist()
        return {"user": int(rng.choice(pool)), "items": None if rng.random() < 0.05 else items}


def _assign(table: EmbeddingTable, ids: np.ndarray, rows: np.ndarray) -> None:
    count = len(ids)
    stamps = np.full(count, table.stamp, np.uint32)
    table.restore(ids, rows, np.empty((count, 0), np.float32), np.full(count, 9, np.uint32), stamps)


def snapshot_of(folder: Path) -> str:
    """Returns the snapshot that a published folder leads to."""
    return str(json.loads((folder / "manifest.json").read_text())["snapshot"])
