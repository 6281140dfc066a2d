"""Builds optimizers from the configuration: torch's for the dense weights, ours for the tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import nn

from trainer.embedding import EmbeddingTable, SparseOptimizer, optimizer_classes
from trainer.embedding.uncompiled import uncompiled
from trainer.optimizer_config import DenseOptimizerConfig, ScheduleConfig, SparseOptimizerConfig


def dense_optimizer(config: DenseOptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of torch.optim for the dense weights of a model."""
    kinds: dict[str, Any] = {
        "Adam": torch.optim.Adam,
        "AdamW": torch.optim.AdamW,
        "SGD": torch.optim.SGD,
        "Adagrad": torch.optim.Adagrad,
    }
    weights = list(model.parameters())
    # Not every torch that trains on GPUs has a fused Adagrad for them.
    how = {"foreach": True} if config.type == "Adagrad" and weights[0].device.type == "cuda" else {"fused": True}
    optimizer: torch.optim.Optimizer = _uncompiled(kinds[config.type])(
        weights, lr=config.lr, weight_decay=config.weight_decay, **how
    )
    return optimizer


@cache
def _uncompiled(kind: type[torch.optim.Optimizer]) -> Any:
    """Returns a class of our own for one of torch's, which stays as it is."""
    return uncompiled(type(kind.__name__, (kind,), {}))


def sparse_optimizer(config: SparseOptimizerConfig, tables: Mapping[str, EmbeddingTable]) -> SparseOptimizer:
    """The fused optimizer for the tables."""
    options = config.model_dump(exclude={"type", "initial_accumulator"})
    made: Any = optimizer_classes()[config.type]
    optimizer: SparseOptimizer = made(tables.values(), **options)
    return optimizer


class Schedule:
    """Sets the learning rates of optimizers before each step, as a configuration says."""

    def __init__(self, config: ScheduleConfig, *optimizers: torch.optim.Optimizer) -> None:
        self._config = config
        # Not the groups themselves: torch makes new ones when a state is loaded.
        self._rates = [(each, [float(group["lr"]) for group in each.param_groups]) for each in optimizers]

    def set(self, step: int) -> None:
        """step: how many steps were made before."""
        factor = self._config.factor(step)
        for optimizer, rates in self._rates:
            for group, lr in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = lr * factor
