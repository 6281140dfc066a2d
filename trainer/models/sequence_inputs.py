"""A target item and a sequence of items before it, as models with attention take them.

B batch, L length of a sequence, D dim, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from storage.errors import ConfigError
from storage.features.strict_model import did_you_mean
from trainer.embedding import Embedded
from trainer.model_config import TransformerConfig
from trainer.models.base import FeatureEmbeddings, RankingModel


@dataclass(frozen=True)
class SequenceShape:
    """Holds the place of a target among the pooled features, and the sizes of its sequence."""

    target_position: int
    dim: int
    length: int


def sequence_shape(model: str, features: FeatureEmbeddings, target: str, sequence: str) -> SequenceShape:
    """Returns where a model finds its target and its sequence. Raises ConfigError when they do not suit it."""
    _expect(model, "target", target, features.pooled_names, "sum or mean")
    _expect(model, "sequence", sequence, features.sequence_names, "none")
    if len(features.sequence_names) > 1:
        raise ConfigError(
            f"{model} takes one sequence, got {list(features.sequence_names)}; pool the others", field="features"
        )
    dim = features.dims[target]
    if features.dims[sequence] != dim:
        raise ConfigError(
            f"{model}: {target!r} has dim {dim}, {sequence!r} has {features.dims[sequence]}; give both one table",
            field="model.sequence",
        )
    return SequenceShape(features.pooled_names.index(target), dim, features.lengths[sequence])


class NewestFirst(nn.Module):
    """Gives a sequence with its newest item first, whatever its order is, and says which places hold items."""

    places: Tensor

    def __init__(self, length: int, newest: Literal["first", "last"]) -> None:
        super().__init__()
        self._is_reversed = newest == "last"
        self.register_buffer("places", torch.arange(length), persistent=False)

    def forward(self, embedded: Embedded) -> tuple[Tensor, Tensor]:
        """Returns rows (B, L, D), zero behind the end, and whether there is an item (B, L)."""
        (rows, lengths), *_ = embedded.sequences.values()
        ends = lengths.unsqueeze(1)
        given = self.places < ends
        if self._is_reversed:
            turned = torch.clamp(ends - 1 - self.places, min=0).unsqueeze(2).expand_as(rows)
            rows = torch.gather(rows, 1, turned) * given.unsqueeze(2)
        return rows, given


class SequenceTransformer(RankingModel):
    """A model of self-attention over a sequence: where its target and its items are, and rows as states."""

    def __init__(self, features: FeatureEmbeddings, config: TransformerConfig) -> None:
        super().__init__(features)
        shape = sequence_shape(config.type, features, config.target, config.sequence)
        #: Values of a state, and items of a sequence.
        self.dim, self.length = config.dim or shape.dim, shape.length
        _check_heads(config.type, self.dim, config.heads)
        self.target_position = shape.target_position
        self.newest_first = NewestFirst(shape.length, config.newest)
        self.project = nn.Linear(shape.dim, self.dim, bias=False) if self.dim != shape.dim else None
        self.dropout = nn.Dropout(config.dropout)


def older_or_same(length: int) -> Tensor:
    """Returns the causal mask (L, L) of a sequence whose newest item is first: each sees itself and what is older."""
    return torch.ones(length, length, dtype=torch.bool).triu()


def _check_heads(model: str, dim: int, heads: int) -> None:
    """Raises ConfigError where the heads do not divide the values of a state."""
    if dim % heads:
        raise ConfigError(
            f"{model}: {heads} heads do not divide {dim} values; choose another model.heads or model.dim",
            field="model.heads",
        )


def split_heads(values: Tensor, heads: int) -> Tensor:
    """Splits states (B, L, D) into those of heads, (B, H, L, D / H)."""
    return values.reshape(*values.shape[:2], heads, values.shape[2] // heads).transpose(1, 2)


def _expect(model: str, role: str, name: str, known: tuple[str, ...], pooling: str) -> None:
    if name not in known:
        raise ConfigError(
            f"{model}: {role} is {name!r}, expected an ids feature with pooling {pooling}{did_you_mean(name, known)}",
            field=f"model.{role}",
        )
