"""Trains a DLRM as plain torch does with several processes: DistributedDataParallel over nn.EmbeddingBag.

Its batches are row numbers that lie in memory: nothing is read, hashed or admitted. The gradients of its tables are as
large as the tables, so it gets a tenth of our ids.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.rank_world import DENSE, IDS, TABLES, Task, config
from benchmarks.traffic import Traffic
from loadtest.popularity import zipf
from trainer.config import TrainConfig
from trainer.models import build_model, build_tables

ROWS = IDS // 10
_BATCHES = 32


class _Dlrm(nn.Module):
    """The network of trainer/models/dlrm.py over dense embeddings."""

    def __init__(self, dim: int, shapes: dict[str, list[tuple[int, int]]]) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(ROWS, dim, mode="sum") for _ in range(TABLES))
        self.bottom, self.top = (mlp(shapes[name]) for name in ("bottom", "top"))
        self.pairs = torch.tril_indices(TABLES + 1, TABLES + 1, offset=-1)

    def forward(self, numbers: Tensor, dense: Tensor) -> Tensor:
        offsets = torch.arange(numbers.shape[1])
        first = self.bottom(dense)
        rows = [bag(own, offsets) for bag, own in zip(self.bags, numbers, strict=True)]
        stacked = torch.stack([first, *rows], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        result: Tensor = self.top(torch.cat([first, products], dim=1))
        return result


def mlp(shapes: list[tuple[int, int]]) -> nn.Sequential:
    """Returns linear layers of these shapes, with ReLU between them."""
    layers: list[nn.Module] = []
    for wide, width in shapes:
        layers += [nn.Linear(width, wide), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def layer_shapes(made: TrainConfig) -> dict[str, list[tuple[int, int]]]:
    """Returns width and inputs of the layers of our DLRM."""
    shapes: dict[str, list[tuple[int, int]]] = {"bottom": [], "top": []}
    for name, each in build_model(made, build_tables(made)).named_parameters():
        if each.ndim == 2:
            shapes[name.split(".", 1)[0]].append((each.shape[0], each.shape[1]))
    return shapes


def made_batches(task: Task, rows: int) -> tuple[np.ndarray, Tensor, Tensor]:
    """Returns this rank's part of some batches: row numbers (K, T, B), dense values (K, B, C), labels (K, B, 1)."""
    own = task.batch // task.size
    traffic = [Traffic(zipf(rows), seed=100 * task.rank + table) for table in range(TABLES)]
    rng = np.random.default_rng(task.rank)
    dense = torch.from_numpy(rng.standard_normal((_BATCHES, own, DENSE), np.float32))
    labels = torch.from_numpy((rng.random((_BATCHES, own, 1)) < 0.25).astype(np.float32))
    return np.stack([each.batches(_BATCHES, own) for each in traffic], axis=1), dense, labels


class Ddp:
    """Steps by Adagrad of the tables and Adam of the rest, as ours."""

    def __init__(self, task: Task) -> None:
        dist.init_process_group("gloo")
        made = config(task.batch, **task.options)
        dim = made.row_tables[0].rows.dim
        torch.manual_seed(1)
        network = _Dlrm(dim, layer_shapes(made))
        self._tables = torch.optim.Adagrad(network.bags.parameters(), lr=0.05, initial_accumulator_value=0.1)
        rest = [*network.bottom.parameters(), *network.top.parameters()]
        self._dense = torch.optim.Adam(rest, lr=1e-3, fused=True)
        self._network = DistributedDataParallel(network)
        self._numbers, self._inputs, self._labels = made_batches(task, ROWS)
        self._taken = 0

    def step(self) -> float:
        """Returns the loss of a step."""
        index = self._taken % _BATCHES
        self._taken += 1
        self._tables.zero_grad()
        self._dense.zero_grad()
        logits = self._network(torch.from_numpy(self._numbers[index]), self._inputs[index])
        loss = functional.binary_cross_entropy_with_logits(logits, self._labels[index])
        loss.backward()  # type: ignore[no-untyped-call]
        self._dense.step()
        self._tables.step()
        return float(loss.detach())

    def figures(self) -> tuple[dict[str, int], float, dict[str, float]]:
        """Returns nothing: torch does not say."""
        return {}, 0.0, {}

    def auc(self, path: Path) -> float:
        """Is not measured."""
        raise NotImplementedError
