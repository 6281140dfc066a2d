"""DeepFM: a linear part, a factorisation machine and an MLP over the same embeddings, their log-odds added.

Source: Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", 2017. The first-order
weight of an id is the first value of its row, the other D - 1 are its factors: one lookup serves both. It differs in
that the sum over pairs has a learned weight, which begins at one over the number of fields. In the plain sum, the
factors of an id meet those of all other fields, so among many fields even an id that came once moves every score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from storage.errors import ConfigError
from trainer.model_config import DeepFmConfig
from trainer.models import blocks
from trainer.models.base import FeatureEmbeddings, Inputs, RankingModel, mlp
from trainer.models.first_order import FirstOrder, first_order_layouts

#: First values of the factors of dense features; near those of ids, so that pairs begin at nothing.
_SCALE = 0.001


class DeepFm(RankingModel):
    """All tables have one dim D >= 2. The dense features together are one more field of the factorisation machine.

    Several tasks share all but the MLP's last layer, the bias, and the weights of what is shared.
    """

    def __init__(self, features: FeatureEmbeddings, config: DeepFmConfig) -> None:
        super().__init__(features)
        dim = features.expect_pooled("deepfm", same_dim=True)
        if dim < 2:
            raise ConfigError("deepfm needs dim 2 or more: one first-order weight and the factors", field="tables")
        width = features.dense_width
        self.linear = FirstOrder(features)
        self.dense_factors = nn.Linear(width, dim - 1, bias=False) if width else None
        if self.dense_factors is not None:
            nn.init.uniform_(self.dense_factors.weight, -_SCALE, _SCALE)
        fields = len(features.pooled_names) + (width > 0)
        self.pair_weight = nn.Parameter(torch.full((features.heads,), 1.0 / fields))
        joined = len(features.pooled_names) * (dim - 1) + width
        self.deep = mlp(joined, config.hidden, dropout=config.dropout, out=features.heads)

    def logits(self, inputs: Inputs) -> Tensor:
        pooled = self.features(inputs).parts()
        fields = [rows[:, 1:] for rows in pooled]
        deep = list(fields)
        dense = None
        if self.dense_factors is not None:
            dense = torch.cat(self.features.dense(inputs), dim=1)
            deep.append(dense)
            fields.append(self.dense_factors(dense))
        factors = torch.stack(fields, dim=1)
        # sum over pairs of <v_i, v_j> = (|sum v|^2 - sum |v|^2) / 2
        total = factors.sum(dim=1)
        pairs = 0.5 * (total * total - (factors * factors).sum(dim=1)).sum(dim=1, keepdim=True)
        result: Tensor = self.linear(pooled, dense) + pairs * self.pair_weight + self.deep(torch.cat(deep, dim=1))
        return result

    def output_biases(self) -> Sequence[Tensor]:
        return (self.linear.bias,)

    @staticmethod
    def layouts(inputs: blocks.InputLayout, weights: Mapping[str, blocks.Shape]) -> dict[str, blocks.WeightLayout]:
        fields = tuple((f"field {inputs.names(name)}", inputs.dims[name] - 1) for name in inputs.pooled)
        dense = inputs.dense()
        factors: blocks.Blocks = (("factors", inputs.dims[inputs.pooled[0]] - 1),)
        return {
            **first_order_layouts("linear", inputs),
            "pair_weight": blocks.WeightLayout("pair_weight", (inputs.heads,)),
            "dense_factors.weight": blocks.WeightLayout("dense_factors.weight", (factors, dense)),
            **blocks.mlp_layouts("deep", weights, (*fields, *dense), inputs.heads),
        }
