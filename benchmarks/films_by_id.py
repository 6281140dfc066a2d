"""A small factorisation machine with an MLP that does not see some of its features: they stand for ids without a row.

B batch, N features that it sees, D dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer import RankingModel
from trainer.models.base import FeatureEmbeddings, Inputs, mlp


class FilmsById(RankingModel):
    """Sees all pooled features but those in `unseen`, whose rows are read in chains alone."""

    def __init__(self, features: FeatureEmbeddings, unseen: Sequence[str]) -> None:
        super().__init__(features)
        self.names = [name for name in features.pooled_names if name not in unseen]
        width = sum(features.dims[name] for name in self.names) + features.dense_width
        self.deep = mlp(width, (32,), dropout=0.2, out=1)
        self.pairs = nn.Parameter(torch.tensor(1.0 / len(self.names)))

    def logits(self, inputs: Inputs) -> Tensor:
        """Returns the log-odds (B, 1): a weight of each id, pairs of their factors, and an MLP."""
        found = self.features(inputs)
        rows = torch.stack([found[name] for name in self.names], dim=1)  # (B, N, D)
        factors = rows[:, :, 1:]
        squares = factors.sum(dim=1).square() - factors.square().sum(dim=1)
        deep: Tensor = self.deep(torch.cat([rows.flatten(1), *self.features.dense(inputs)], dim=1))
        return rows[:, :, 0].sum(dim=1, keepdim=True) + self.pairs * 0.5 * squares.sum(dim=1, keepdim=True) + deep
