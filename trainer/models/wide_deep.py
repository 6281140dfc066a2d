"""Wide & Deep: a linear model and an MLP over the same features, their log-odds added.

Source: Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016. It differs in that the linear part has no
table of its own: the first value of a row is its linear weight, the others are what the MLP reads. A row of one value
is a linear weight alone, which suits crosses of features; both parts learn with the same optimizer of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from trainer.model_config import WideDeepConfig
from trainer.models import blocks
from trainer.models.base import FeatureEmbeddings, Inputs, RankingModel, mlp


class WideDeep(RankingModel):
    """Tables have any dims. Both parts read the dense features; without anything to read there is no MLP."""

    def __init__(self, features: FeatureEmbeddings, config: WideDeepConfig) -> None:
        super().__init__(features)
        features.expect_pooled("wide_deep", same_dim=False)
        dense = features.dense_width
        width = sum(features.dims[name] - 1 for name in features.pooled_names) + dense
        self.bias = nn.Parameter(torch.zeros(features.heads))
        # Several heads share the linear weights of the rows, each by a factor of its own.
        self.wide_share = nn.Parameter(torch.ones(features.heads)) if features.heads > 1 else None
        self.wide_dense = nn.Linear(dense, features.heads, bias=False) if dense else None
        self.deep = mlp(width, config.hidden, dropout=config.dropout, out=features.heads) if width else None

    def logits(self, inputs: Inputs) -> Tensor:
        pooled = self.features(inputs).parts()
        dense = self.features.dense(inputs)
        wide = torch.cat([field[:, :1] for field in pooled], dim=1).sum(dim=1, keepdim=True)
        result: Tensor = self.bias + (wide if self.wide_share is None else wide * self.wide_share)
        if self.wide_dense is not None:
            result = result + self.wide_dense(torch.cat(dense, dim=1))
        if self.deep is not None:
            deep = [field[:, 1:] for field in pooled if field.shape[1] > 1]
            result = result + self.deep(torch.cat([*deep, *dense], dim=1))
        return result

    def output_biases(self) -> Sequence[Tensor]:
        return (self.bias,)

    @staticmethod
    def layouts(inputs: blocks.InputLayout, weights: Mapping[str, blocks.Shape]) -> dict[str, blocks.WeightLayout]:
        fields = tuple((f"field {inputs.names(name)}", inputs.dims[name] - 1) for name in inputs.pooled)
        heads = inputs.heads
        return {
            "bias": blocks.WeightLayout("bias", (heads,)),
            "wide_share": blocks.WeightLayout("wide_share", (heads,)),
            "wide_dense.weight": blocks.WeightLayout("wide_dense.weight", (heads, inputs.dense())),
            **blocks.mlp_layouts("deep", weights, (*fields, *inputs.dense()), heads),
        }
