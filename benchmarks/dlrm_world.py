"""Publishes a DLRM (13 dense values, 26 ids, 16 wide), saves it as plain torch for a peer, and makes requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.dlrm_towers import DENSE, DIM, ROWS, SPARSE, Towers
from benchmarks.trained_tables import trained_tables
from loadtest.rows import Tensor as WireTensor
from storage.features import FeatureSpec, column_from_rows
from trainer.embedding import EmbeddingBag, EmbeddingTable
from trainer.publishing.publisher import Publisher


def spec() -> FeatureSpec:
    """Returns one input of 26 ids, each for a table of its own, and one of 13 values."""
    features: list[dict[str, Any]] = [
        {
            "name": f"c{index}",
            "inputs": ["ids"],
            "transforms": [{"op": "select", "index": index}],
            "output": "ids",
            "table": f"t{index}",
            "pooling": "sum",
        }
        for index in range(SPARSE)
    ]
    features.append({"name": "dense", "inputs": ["dense"], "output": "dense"})
    inputs = [
        {"name": "ids", "dtype": "INT64", "width": SPARSE},
        {"name": "dense", "dtype": "FP32", "width": DENSE},
    ]
    return FeatureSpec.model_validate({"inputs": inputs, "features": features})


class Dlrm(nn.Module):
    """The model in its published form: its rows come from embedding tables."""

    def __init__(self, tables: list[EmbeddingTable]) -> None:
        super().__init__()
        self.bags = nn.ModuleList([EmbeddingBag(table, "sum") for table in tables])
        self.towers = Towers()

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = [bag(inputs[f"c{i}.values"], inputs[f"c{i}.offsets"]) for i, bag in enumerate(self.bags)]
        return {"score": self.towers(inputs["dense"], torch.stack(rows, 1))}


class DlrmWorld:
    """Publishes the model as version 1 of repository/dlrm, and saves its weights as plain tensors in `weights`."""

    def __init__(self, repository: Path, weights: Path, *, seed: int = 1) -> None:
        self._rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        tables, every = trained_tables(SPARSE, ROWS, DIM, self._rng, scale=0.3, seed=seed)
        module = Dlrm(tables).eval()
        known = spec()
        sample = {tensor.name: tensor.values for tensor in self.request(300)}
        columns = {entry.name: column_from_rows(entry, sample[entry.name].tolist()) for entry in known.inputs}
        Publisher(module, columns, repository, name="dlrm", spec=known).publish("version")
        save_file({"rows": torch.from_numpy(np.concatenate(every)), **module.towers.state_dict()}, weights)

    def request(self, batch: int) -> list[WireTensor]:
        """Returns random ids and values for `batch` rows."""
        return [
            WireTensor("ids", "INT64", self._rng.integers(0, ROWS, (batch, SPARSE))),
            WireTensor("dense", "FP32", self._rng.standard_normal((batch, DENSE)).astype(np.float32)),
        ]
