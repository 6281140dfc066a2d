"""A model of one's own for trainings by several ranks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer import FeatureEmbeddings, RankingModel
from trainer.models.base import Inputs


class Normed(RankingModel):
    """Draws random numbers, and keeps statistics of the rows that it has seen."""

    def __init__(self, features: FeatureEmbeddings, width: int) -> None:
        super().__init__(features)
        self.body = nn.Sequential(
            nn.LazyLinear(width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, features.heads)
        )
        self.body(torch.zeros(2, features.width + sum(features.dims[name] for name in features.sequence_names)))

    def logits(self, inputs: Inputs) -> Tensor:
        found = self.features(inputs)
        sequences = [rows.sum(dim=1) for rows, _ in found.sequences.values()]
        values: Tensor = self.body(torch.cat([*found.parts(), *self.features.dense(inputs), *sequences], dim=1))
        return values
