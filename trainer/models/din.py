"""DIN: the target item attends over the user's sequence of items; the weighted sum joins the other features in an MLP.

Source: Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", 2018. It differs in that the weights of
a sequence are normalised (softmax), which keeps the sum's size independent of the sequence's length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trainer.model_config import DinConfig
from trainer.models import blocks
from trainer.models.base import FeatureEmbeddings, Inputs, RankingModel, last_bias, mlp
from trainer.models.sequence_inputs import sequence_shape

_HIDDEN = -1e9


class Din(RankingModel):
    """`target` is a pooled feature, `sequence` has pooling none, both have one dim. An empty sequence is zero."""

    positions: Tensor

    def __init__(self, features: FeatureEmbeddings, config: DinConfig) -> None:
        super().__init__(features)
        shape = sequence_shape("din", features, config.target, config.sequence)
        dim = shape.dim
        self.target_position = shape.target_position
        self.register_buffer("positions", torch.arange(shape.length), persistent=False)
        self.attention = mlp(4 * dim, config.attention, out=1)
        self.top = mlp(features.width + 2 * dim, config.hidden, dropout=config.dropout, out=features.heads)

    def logits(self, inputs: Inputs) -> Tensor:
        embedded = self.features(inputs)
        pooled = embedded.parts()
        (rows, lengths), *_ = embedded.sequences.values()
        target = pooled[self.target_position]
        query = target.unsqueeze(1).expand_as(rows)
        weights = self.attention(torch.cat([query, rows, query - rows, query * rows], dim=2)).squeeze(2)
        given = self.positions < lengths.unsqueeze(1)
        weights = torch.softmax(weights.masked_fill(~given, _HIDDEN), dim=1)
        # Rows behind the end are zero, so an empty sequence gives zero whatever its weights are.
        interest = (weights.unsqueeze(2) * rows).sum(dim=1)
        joined = torch.cat([*pooled, interest, interest * target, *self.features.dense(inputs)], dim=1)
        result: Tensor = self.top(joined)
        return result

    def output_biases(self) -> Sequence[Tensor]:
        return (last_bias(self.top),)

    @staticmethod
    def layouts(inputs: blocks.InputLayout, weights: Mapping[str, blocks.Shape]) -> dict[str, blocks.WeightLayout]:
        (dim,) = (inputs.dims[each.name] for each in inputs.spec.ids_features if each.pooling == "none")
        pooled = tuple((f"field {inputs.names(name)}", inputs.dims[name]) for name in inputs.pooled)
        attention = tuple((part, dim) for part in ("query", "rows", "query - rows", "query * rows"))
        top = (*pooled, ("interest", dim), ("interest * target", dim), *inputs.dense())
        return {
            **blocks.mlp_layouts("attention", weights, attention, (("score", 1),)),
            **blocks.mlp_layouts("top", weights, top, inputs.heads),
        }
