"""Builds optimizers from the configuration: torch's for the dense weights, ours for the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trainer.config import DenseOptimizerConfig, SparseOptimizerConfig
from trainer.embedding import EmbeddingTable, SparseAdagrad, SparseOptimizer, SparseSGD


def dense_optimizer(config: DenseOptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of torch.optim for the dense weights of a model."""
    kinds: dict[str, Any] = {
        "Adam": torch.optim.Adam,
        "AdamW": torch.optim.AdamW,
        "SGD": torch.optim.SGD,
        "Adagrad": torch.optim.Adagrad,
    }
    optimizer: torch.optim.Optimizer = kinds[config.type](
        model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
    )
    return optimizer


def sparse_optimizer(config: SparseOptimizerConfig, tables: Mapping[str, EmbeddingTable]) -> SparseOptimizer:
    """The fused optimizer for the tables."""
    if config.type == "adagrad":
        return SparseAdagrad(tables.values(), lr=config.lr, eps=config.eps)
    return SparseSGD(tables.values(), lr=config.lr)
