"""Wide & Deep: a linear model and an MLP over the same features, their log-odds added.

Source: Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016. It differs in that the linear part has no
table of its own: the first value of a row is its linear weight, the others are what the MLP reads. A row of one value
is a linear weight alone, which suits crosses of features; both parts learn with the same optimizer of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trainer.model_config import WideDeepConfig
from trainer.models import blocks
from trainer.models.base import FeatureEmbeddings, Inputs, RankingModel, mlp
from trainer.models.first_order import FirstOrder, first_order_layouts


class WideDeep(RankingModel):
    """Tables have any dims. Both parts read the dense features; without anything to read there is no MLP."""

    def __init__(self, features: FeatureEmbeddings, config: WideDeepConfig) -> None:
        super().__init__(features)
        features.expect_pooled("wide_deep", same_dim=False)
        dense = features.dense_width
        width = sum(features.dims[name] - 1 for name in features.pooled_names) + dense
        self.wide = FirstOrder(features)
        self.deep = mlp(width, config.hidden, dropout=config.dropout, out=features.heads) if width else None

    def logits(self, inputs: Inputs) -> Tensor:
        pooled = self.features(inputs).parts()
        groups = self.features.dense(inputs)
        dense = torch.cat(groups, dim=1) if groups else None
        result: Tensor = self.wide(pooled, dense)
        if self.deep is not None:
            deep = [field[:, 1:] for field in pooled if field.shape[1] > 1]
            result = result + self.deep(torch.cat(deep if dense is None else [*deep, dense], dim=1))
        return result

    def output_biases(self) -> Sequence[Tensor]:
        return (self.wide.bias,)

    @staticmethod
    def layouts(inputs: blocks.InputLayout, weights: Mapping[str, blocks.Shape]) -> dict[str, blocks.WeightLayout]:
        fields = tuple((f"field {inputs.names(name)}", inputs.dims[name] - 1) for name in inputs.pooled)
        return {
            **first_order_layouts("wide", inputs),
            **blocks.mlp_layouts("deep", weights, (*fields, *inputs.dense()), inputs.heads),
        }
