"""DeepFM: a factorisation machine and an MLP over the same embeddings, their log-odds added.

Source: Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", 2017. The first-order
weight of an id is the first value of its row, the other D - 1 are its factors: one lookup serves both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from storage.errors import ConfigError
from trainer.model_config import DeepFmConfig
from trainer.models import blocks
from trainer.models.base import FeatureEmbeddings, Inputs, RankingModel, mlp


class DeepFm(RankingModel):
    """All tables have one dim D >= 2. Dense features are one more field, made by a linear layer. Several tasks share
    all but the MLP's last layer, the bias and a factor.
    """

    def __init__(self, features: FeatureEmbeddings, config: DeepFmConfig) -> None:
        super().__init__(features)
        dim = features.expect_pooled("deepfm", same_dim=True)
        if dim < 2:
            raise ConfigError("deepfm needs dim 2 or more: one first-order weight and the factors", field="tables")
        width = features.dense_width
        self.dense_field = nn.Linear(width, dim) if width else None
        self.bias = nn.Parameter(torch.zeros(features.heads))
        # Several heads share the factorisation machine, each by a factor of its own.
        self.fm_share = nn.Parameter(torch.ones(features.heads)) if features.heads > 1 else None
        joined = len(features.pooled_names) * (dim - 1) + width
        self.deep = mlp(joined, config.hidden, dropout=config.dropout, out=features.heads)

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
        if self.fm_share is None:
            result: Tensor = self.bias + first_order + pairs + self.deep(torch.cat(deep, dim=1))
        else:
            result = self.bias + (first_order + pairs) * self.fm_share + self.deep(torch.cat(deep, dim=1))
        return result

    def output_biases(self) -> Sequence[Tensor]:
        return (self.bias,)

    @staticmethod
    def layouts(inputs: blocks.InputLayout, weights: Mapping[str, blocks.Shape]) -> dict[str, blocks.WeightLayout]:
        fields = tuple((f"field {inputs.names(name)}", inputs.dims[name] - 1) for name in inputs.pooled)
        dense = inputs.dense()
        field: blocks.Blocks = (("values", inputs.dims[inputs.pooled[0]]),)
        return {
            "bias": blocks.WeightLayout("bias", (inputs.heads,)),
            "fm_share": blocks.WeightLayout("fm_share", (inputs.heads,)),
            "dense_field.weight": blocks.WeightLayout("dense_field.weight", (field, dense)),
            "dense_field.bias": blocks.WeightLayout("dense_field.bias", (field,)),
            **blocks.mlp_layouts("deep", weights, (*fields, *dense), inputs.heads),
        }
