"""HSTU: pointwise aggregated attention over the user's items and the target; the target's state is ranked by an MLP.

Source: Zhai et al., "Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers for Generative
Recommendations", 2024. Each layer makes U, V, Q, K = SiLU(f1(norm(X))), aggregates A V with A = SiLU(Q K^T + bias) / n
and no softmax, so that the strength of a preference is kept, and adds f2(norm(A V) * U) to X. The bias is that of
relative positions; times of actions are not used. The target stands before the newest item, as the paper's ranking
model has it, and sees all items.

B batch, T tokens (the target and L items), D values of a state, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.model_config import HstuConfig
from trainer.models import blocks
from trainer.models.base import FeatureEmbeddings, Inputs, last_bias, mlp
from trainer.models.sequence_inputs import SequenceTransformer, older_or_same, split_heads


class Hstu(SequenceTransformer):
    """`target` is a pooled feature, `sequence` has pooling none, both have one dim."""

    def __init__(self, features: FeatureEmbeddings, config: HstuConfig) -> None:
        super().__init__(features, config)
        dim = self.dim
        #: Of the target, and of items from the newest one on.
        self.positions = nn.Parameter(0.02 * torch.randn(self.length + 1, dim))
        self.blocks = nn.ModuleList(
            _Block(dim, config.heads, self.length + 1, config.dropout) for _ in range(config.blocks)
        )
        self.top = mlp(features.width + dim, config.hidden, dropout=config.dropout, out=features.heads)

    def logits(self, inputs: Inputs) -> Tensor:
        embedded = self.features(inputs)
        pooled = embedded.parts()
        rows, given = self.newest_first(embedded)
        tokens = torch.cat([pooled[self.target_position].unsqueeze(1), rows], dim=1)
        if self.project is not None:
            tokens = self.project(tokens)
        given = torch.cat([torch.ones_like(given[:, :1]), given], dim=1)
        states = self.dropout(tokens * tokens.shape[2] ** 0.5 + self.positions) * given.unsqueeze(2)
        for block in self.blocks:
            states = block(states, given)
        joined = torch.cat([*pooled, states[:, 0], *self.features.dense(inputs)], dim=1)
        result: Tensor = self.top(joined)
        return result

    def output_biases(self) -> Sequence[Tensor]:
        return (last_bias(self.top),)

    @staticmethod
    def layouts(inputs: blocks.InputLayout, weights: Mapping[str, blocks.Shape]) -> dict[str, blocks.WeightLayout]:
        return blocks.sequence_layouts(inputs, weights, weights["positions"][1], product=False)


class _Block(nn.Module):
    """One layer, with its residual."""

    older: Tensor
    distances: Tensor

    def __init__(self, dim: int, heads: int, tokens: int, dropout: float) -> None:
        super().__init__()
        self._heads = heads
        self.register_buffer("older", older_or_same(tokens), persistent=False)
        places = torch.arange(tokens)
        self.register_buffer("distances", (places - places.unsqueeze(1)).clamp(min=0), persistent=False)
        #: The relative bias of each head, by how much older a token is than the one that looks at it.
        self.bias = nn.Parameter(0.02 * torch.randn(heads, tokens))
        self.norm = nn.LayerNorm(dim)
        self.first = nn.Linear(dim, 4 * dim)
        self.found_norm = nn.LayerNorm(dim)
        self.second = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor, given: Tensor) -> Tensor:
        """Returns states (B, T, D). given: whether there is a token, (B, T)."""
        gate, value, query, key = torch.chunk(functional.silu(self.first(self.norm(states))), 4, dim=2)
        value, query, key = (split_heads(each, self._heads) for each in (value, query, key))
        bias = self.bias[:, self.distances]
        scores = functional.silu(torch.matmul(query, key.transpose(2, 3)) + bias) / states.shape[1]
        seen = torch.logical_and(self.older, given[:, None, None, :])
        found = torch.matmul(scores * seen, value).transpose(1, 2).flatten(2)
        result: Tensor = states + self.second(self.dropout(self.found_norm(found) * gate))
        return result
