"""Publishes a DLRM of torch's own layers, and each day's changes as deltas; a peer gets the same as plain weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.dlrm_towers import DENSE, DIM, SPARSE, Towers
from loadtest.rows import Tensor as WireTensor
from trainer.publishing import DeltaPolicy, publish

# The share of rows and of large weights that a day changes.
CHANGED_ROWS, CHANGED_VALUES = 0.01, 0.02
_CHAIN = DeltaPolicy(cumulative_every=0, version_every_deltas=0, version_at_share=0.0)


class PlainDlrm(nn.Module):
    """DLRM on nn.Embedding. large: values of a bfloat16 weight beside it, of which a request reads a few."""

    def __init__(self, rows: int, large: int = 0) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, DIM) for _ in range(SPARSE)])
        self.towers = Towers()
        self.large = None
        if large:
            self.large = nn.Parameter(torch.empty(large // DIM, DIM, dtype=torch.bfloat16).normal_(std=0.02))

    def weights_of_tables(self) -> list[Tensor]:
        """Returns the rows of each table, (rows, DIM)."""
        return list(self.tables.parameters())

    def forward(self, ids: Tensor, dense: Tensor) -> dict[str, Tensor]:
        rows = torch.stack([table(ids[:, index]) for index, table in enumerate(self.tables)], 1)
        if self.large is not None:
            rows = rows + self.large[:SPARSE].float()
        return {"score": self.towers(dense, rows)}


class PlainWorld:
    """Publishes version 1 of repository/dlrm, and then `days` deltas; weights of each in `weights`/N.safetensors."""

    def __init__(self, repository: Path, weights: Path | None, rows: int, days: int, *, large: int = 0) -> None:
        torch.manual_seed(1)
        self._rng = np.random.default_rng(1)
        self._rows = rows
        self.module = PlainDlrm(rows, large).eval()
        self.published: list[Path] = []
        for day in range(days + 1):
            if day:
                self.change()
            if weights is not None:
                weights.mkdir(exist_ok=True)
                tables = torch.cat(self.module.weights_of_tables())
                save_file({"rows": tables.detach(), **self.module.towers.state_dict()}, weights / f"{day}.safetensors")
            sample = {tensor.name: torch.from_numpy(tensor.values) for tensor in self.request(300)}
            self.published.append(publish(self.module, sample, repository, name="dlrm", delta=True, policy=_CHAIN))

    def change(self) -> None:
        """Changes a hundredth of the rows, all weights of the towers, and a fiftieth of a large weight's values."""
        with torch.no_grad():
            for rows in self.module.weights_of_tables():
                ids = self._rng.choice(self._rows, int(self._rows * CHANGED_ROWS), replace=False)
                rows[torch.from_numpy(ids)] *= 1.01
            for weight in self.module.towers.parameters():
                weight.mul_(1.0001)
            if self.module.large is not None:
                change_values(self.module.large, self._rng)

    def request(self, batch: int) -> list[WireTensor]:
        """Returns random ids and values for `batch` rows."""
        return [
            WireTensor("ids", "INT64", self._rng.integers(0, self._rows, (batch, SPARSE))),
            WireTensor("dense", "FP32", self._rng.standard_normal((batch, DENSE)).astype(np.float32)),
        ]


def change_values(weight: Tensor, rng: np.random.Generator) -> None:
    """Changes a fiftieth of the values of a weight, in place, by about two percent each."""
    flat = weight.view(-1)
    places = torch.from_numpy(rng.integers(0, len(flat), int(len(flat) * CHANGED_VALUES)))
    flat[places] *= 1.02
