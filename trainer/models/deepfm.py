"""DeepFM: a factorisation machine and an MLP over the same embeddings, their log-odds added.

Source: Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", 2017. The first-order
weight of an id is the first value of its row, the other D - 1 are its factors: one lookup serves both.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from storage.errors import ConfigError
from trainer.model_config import DeepFmConfig
from trainer.models import blocks
from trainer.models.base import FeatureEmbeddings, Inputs, RankingModel, mlp


class DeepFm(RankingModel):
    """All tables have one dim D >= 2. Dense features are one more field, made by a linear layer."""

    def __init__(self, features: FeatureEmbeddings, config: DeepFmConfig) -> None:
        super().__init__(features)
        dim = features.expect_pooled("deepfm", same_dim=True)
        if dim < 2:
            raise ConfigError("deepfm needs dim 2 or more: one first-order weight and the factors", field="tables")
        width = features.dense_width
        self.dense_field = nn.Linear(width, dim) if width else None
        self.bias = nn.Parameter(torch.zeros(1))
        self.deep = mlp(len(features.pooled_names) * (dim - 1) + width, config.hidden, dropout=config.dropout, out=1)

    def logits(self, inputs: Inputs) -> Tensor:
        pooled = self.features(inputs).parts()
        deep = [field[:, 1:] for field in pooled]
        if self.dense_field is not None:
            dense = torch.cat(self.features.dense(inputs), dim=1)
            deep.append(dense)
            pooled.append(self.dense_field(dense))
        fields = torch.stack(pooled, dim=1)
        first_order = fields[:, :, 0].sum(dim=1, keepdim=True)
        factors = fields[:, :, 1:]
        # sum over pairs of <v_i, v_j> = (|sum v|^2 - sum |v|^2) / 2
        total = factors.sum(dim=1)
        pairs = 0.5 * (total * total - (factors * factors).sum(dim=1)).sum(dim=1, keepdim=True)
        result: Tensor = self.bias + first_order + pairs + self.deep(torch.cat(deep, dim=1))
        return result

    @staticmethod
    def layouts(inputs: blocks.InputLayout, weights: Mapping[str, blocks.Shape]) -> dict[str, blocks.WeightLayout]:
        fields = tuple((f"field {inputs.names(name)}", inputs.dims[name] - 1) for name in inputs.pooled)
        dense = inputs.dense()
        field: blocks.Blocks = (("values", inputs.dims[inputs.pooled[0]]),)
        score: blocks.Blocks = (("score", 1),)
        return {
            "bias": blocks.WeightLayout("bias", (score,)),
            "dense_field.weight": blocks.WeightLayout("dense_field.weight", (field, dense)),
            "dense_field.bias": blocks.WeightLayout("dense_field.bias", (field,)),
            **blocks.mlp_layouts("deep", weights, (*fields, *dense), score),
        }
