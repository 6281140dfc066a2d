"""DLRM: dense features through an MLP, dot products of all pairs of vectors, a second MLP on top.

Source: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trainer.model_config import DlrmConfig
from trainer.models import blocks
from trainer.models.base import FeatureEmbeddings, Inputs, RankingModel, last_bias, mlp
from trainer.models.interactions import PairProducts


class Dlrm(RankingModel):
    """All tables have one dim D. Without dense features there is no bottom MLP, and only the pairs go to the top."""

    def __init__(self, features: FeatureEmbeddings, config: DlrmConfig) -> None:
        super().__init__(features)
        dim = features.expect_pooled("dlrm", same_dim=True)
        has_dense = features.dense_width > 0
        self.bottom = mlp(features.dense_width, config.bottom, dropout=config.dropout, out=dim) if has_dense else None
        vectors = len(features.pooled_names) + has_dense
        self.pairs = PairProducts(vectors)
        # The first vector is an input too: it is the dense one, or else gives a model of a single feature any input.
        self.top = mlp(dim + vectors * (vectors - 1) // 2, config.top, dropout=config.dropout, out=features.heads)

    def logits(self, inputs: Inputs) -> Tensor:
        embedded = self.features(inputs)
        first = None if self.bottom is None else self.bottom(torch.cat(self.features.dense(inputs), dim=1))
        if self.training:
            joined = self.pairs(first, embedded.stacked())
        else:
            joined = self.pairs.by_operators([*([] if first is None else [first]), *embedded.parts()])
        result: Tensor = self.top(joined)
        return result

    def output_biases(self) -> Sequence[Tensor]:
        return (last_bias(self.top),)

    @staticmethod
    def layouts(inputs: blocks.InputLayout, weights: Mapping[str, blocks.Shape]) -> dict[str, blocks.WeightLayout]:
        dense = inputs.dense()
        # The vector of the dense features; no feature can be called so.
        vectors = [*([" dense"] if dense else []), *(inputs.names(name) for name in inputs.pooled)]
        dim = inputs.dims[inputs.pooled[0]]
        top = ((f"vector {vectors[0]}", dim), *blocks.pair_blocks(vectors))
        return {
            **blocks.mlp_layouts("bottom", weights, dense, (("values", dim),)),
            **blocks.mlp_layouts("top", weights, top, inputs.heads),
        }
