"""Publishes a DLRM-like ranker whose inputs belong half to the user and half to the item, and makes requests for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.trained_tables import trained_tables
from loadtest.bodies import binary_body
from loadtest.rows import Tensor as WireTensor
from storage.features import FeatureSpec, column_from_rows
from trainer.embedding import EmbeddingBag, EmbeddingTable
from trainer.publishing.publisher import Publisher

DIM, SPARSE, DENSE, ROWS, HISTORY = 16, 26, 13, 20_000, 50
USERS = SPARSE // 2


def spec(history: int) -> FeatureSpec:
    """Returns the inputs: 26 ids, the first half the user's; a list of the user's; 13 dense values of the item.

    history: the longest list.
    """
    sides = ["user" if index < USERS else "item" for index in range(SPARSE)]
    inputs: list[dict[str, Any]] = [
        {"name": f"c{index}", "dtype": "INT64", "side": side} for index, side in enumerate(sides)
    ]
    features: list[dict[str, Any]] = [
        {"name": f"c{index}", "inputs": [f"c{index}"], "output": "ids", "table": f"t{index}", "pooling": "sum"}
        for index in range(SPARSE)
    ]
    inputs.append({"name": "history", "dtype": "INT64", "kind": "list", "side": "user", "max_length": history})
    features.append(
        {"name": "history", "inputs": ["history"], "output": "ids", "table": f"t{USERS}", "pooling": "mean"}
    )
    inputs.append({"name": "dense", "dtype": "FP32", "width": DENSE})
    features.append({"name": "dense", "inputs": ["dense"], "output": "dense"})
    return FeatureSpec.model_validate({"inputs": inputs, "features": features})


class Towers(nn.Module):
    """Scores with a tower for the user, one for the item, and an MLP over both and their product."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Sequential(nn.Linear(DIM * (USERS + 1), 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        item = DIM * (SPARSE - USERS) + DENSE
        self.item = nn.Sequential(nn.Linear(item, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """user: (B, 224), rows. item: (B, 221), rows and dense values. Returns (B, 1) scores."""
        left, right = self.user(user), self.item(item)
        return torch.sigmoid(self.top(torch.cat([left, right, left * right], 1)))


class Ranker(nn.Module):
    """The model in its published form: its rows come from embedding tables."""

    def __init__(self, tables: list[EmbeddingTable]) -> None:
        super().__init__()
        self.bags = nn.ModuleList([EmbeddingBag(table, "sum") for table in tables])
        self.history = EmbeddingBag(tables[USERS], "mean")
        self.towers = Towers()

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = [bag(inputs[f"c{i}.values"], inputs[f"c{i}.offsets"]) for i, bag in enumerate(self.bags)]
        history = self.history(inputs["history.values"], inputs["history.offsets"])
        user, item = torch.cat([*rows[:USERS], history], 1), torch.cat([*rows[USERS:], inputs["dense"]], 1)
        return {"score": self.towers(user, item)}


class RankingWorld:
    """Publishes the ranker as version 1 of repository/name."""

    def __init__(self, repository: Path, name: str, *, seed: int = 1, history: int = HISTORY) -> None:
        """history: ids in the user's list."""
        self._history = history
        self.rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        tables, _ = trained_tables(SPARSE, ROWS, DIM, self.rng, scale=0.1, seed=seed)
        module = Ranker(tables).eval()
        known = spec(history)
        sample = self._values(300, 300)
        columns = {
            entry.name: column_from_rows(
                entry,
                sample[entry.name].tolist()
                if entry.name in ("history", "dense")
                else sample[entry.name].ravel().tolist(),
            )
            for entry in known.inputs
        }
        self.version = Publisher(module, columns, repository, name=name, spec=known).publish("version")

    def bodies(self, count: int, batch: int, *, users: int) -> list[tuple[bytes, int]]:
        """Returns binary requests for `batch` items. users: 1 sends the user once, `batch` repeats it in every row."""
        found = []
        for _ in range(count):
            values = self._values(batch, 1)
            if users > 1:
                values = {
                    name: np.repeat(value, batch, 0) if len(value) == 1 else value for name, value in values.items()
                }
            dtypes = {"dense": "FP32"}
            found.append(
                binary_body([WireTensor(name, dtypes.get(name, "INT64"), value) for name, value in values.items()])
            )
        return found

    def _values(self, items: int, users: int) -> dict[str, np.ndarray[Any, Any]]:
        values: dict[str, np.ndarray[Any, Any]] = {}
        for index in range(SPARSE):
            rows = users if index < USERS else items
            values[f"c{index}"] = self.rng.integers(0, ROWS, (rows, 1))
        values["history"] = self.rng.integers(0, ROWS, (users, self._history))
        values["dense"] = self.rng.standard_normal((items, DENSE)).astype(np.float32)
        return values
