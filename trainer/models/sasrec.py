"""SASRec: a causal transformer over the user's items; its newest state meets the target in an MLP.

Source: Kang and McAuley, "Self-Attentive Sequential Recommendation", 2018, whose blocks these are. It differs in that
the model ranks: the state of the newest item and its product with the target join the other features. Positions count
from the newest item.

B batch, L length, D values of a state, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from trainer.model_config import SasRecConfig
from trainer.models import blocks
from trainer.models.base import FeatureEmbeddings, Inputs, last_bias, mlp
from trainer.models.sequence_inputs import SequenceTransformer, older_or_same, split_heads

_HIDDEN = -1e9


class SasRec(SequenceTransformer):
    """`target` is a pooled feature, `sequence` has pooling none, both have one dim. An empty sequence is zero."""

    def __init__(self, features: FeatureEmbeddings, config: SasRecConfig) -> None:
        super().__init__(features, config)
        dim = self.dim
        self.positions = nn.Parameter(0.02 * torch.randn(self.length, dim))
        self.blocks = nn.ModuleList(
            _Block(dim, config.heads, self.length, config.dropout) for _ in range(config.blocks)
        )
        self.norm = nn.LayerNorm(dim)
        self.top = mlp(features.width + 2 * dim, config.hidden, dropout=config.dropout, out=features.heads)

    def logits(self, inputs: Inputs) -> Tensor:
        embedded = self.features(inputs)
        pooled = embedded.parts()
        rows, given = self.newest_first(embedded)
        target = pooled[self.target_position]
        if self.project is not None:
            rows, target = self.project(rows), self.project(target)
        here = given.unsqueeze(2)
        # As in the paper, rows are scaled to the size of what is added to them.
        states = self.dropout(rows * rows.shape[2] ** 0.5 + self.positions) * here
        for block in self.blocks:
            states = block(states, given) * here
        newest = self.norm(states[:, 0]) * given[:, :1]
        joined = torch.cat([*pooled, newest, newest * target, *self.features.dense(inputs)], dim=1)
        result: Tensor = self.top(joined)
        return result

    def output_biases(self) -> Sequence[Tensor]:
        return (last_bias(self.top),)

    @staticmethod
    def layouts(inputs: blocks.InputLayout, weights: Mapping[str, blocks.Shape]) -> dict[str, blocks.WeightLayout]:
        return blocks.sequence_layouts(inputs, weights, weights["positions"][1])


class _Block(nn.Module):
    """Attention of each item to itself and older ones, then two layers over each state, both with residuals."""

    older: Tensor

    def __init__(self, dim: int, heads: int, length: int, dropout: float) -> None:
        super().__init__()
        self._heads = heads
        self.register_buffer("older", older_or_same(length), persistent=False)
        self.attention_norm = nn.LayerNorm(dim)
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.joined = nn.Linear(dim, dim)
        self.forward_norm = nn.LayerNorm(dim)
        self.inner = nn.Linear(dim, dim)
        self.outer = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor, given: Tensor) -> Tensor:
        """Returns states (B, L, D). given: whether there is an item, (B, L)."""
        queries = self.attention_norm(states)
        query, key, value = (
            split_heads(each, self._heads) for each in (self.query(queries), self.key(states), self.value(states))
        )
        scores = torch.matmul(query, key.transpose(2, 3)) * (query.shape[3] ** -0.5)
        seen = torch.logical_and(self.older, given[:, None, None, :])
        shares = self.dropout(torch.softmax(scores.masked_fill(~seen, _HIDDEN), dim=3))
        found = torch.matmul(shares, value).transpose(1, 2).flatten(2)
        states = queries + self.dropout(self.joined(found))
        inner = self.forward_norm(states)
        result: Tensor = inner + self.dropout(self.outer(self.dropout(torch.relu(self.inner(inner)))))
        return result
