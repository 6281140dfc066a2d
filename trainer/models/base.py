"""The base of all models of the zoo: their inputs, their output, and the layers that they share.

A model's inputs are a dict: each dense group by its name, (B, W) float32; and for each ids feature F its bags,
`F.values` (N,) int64 and `F.offsets` (B + 1,) int64, with pooling weighted `F.weights` (N,) float32. Shape letters: B
batch, W columns, N ids, D dim, L length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from storage.errors import ConfigError
from storage.features.spec import FeatureSpec
from trainer.embedding import Embedded, Embedding, EmbeddingBag, EmbeddingCollection, EmbeddingTable

Inputs = Mapping[str, Tensor]


class RankingModel(nn.Module, ABC):
    """A model with one output, the probability of the label."""

    @abstractmethod
    def logits(self, inputs: Inputs) -> Tensor:
        """The log-odds, (B, 1)."""

    def forward(self, inputs: Inputs) -> dict[str, Tensor]:
        return {"score": torch.sigmoid(self.logits(inputs))}


class FeatureEmbeddings(nn.Module):
    """The lookups of all ids features of a spec, in one call, and its dense groups side by side."""

    def __init__(self, spec: FeatureSpec, tables: Mapping[str, EmbeddingTable]) -> None:
        super().__init__()
        features = spec.ids_features
        self.pooled_names = tuple(feature.name for feature in features if feature.pooling != "none")
        self.sequence_names = tuple(feature.name for feature in features if feature.pooling == "none")
        self.dims = {feature.name: tables[feature.table].dim for feature in features}
        self.groups = tuple(spec.dense_groups)
        self.dense_width = sum(spec.dense_groups.values())
        layers: dict[str, EmbeddingBag | Embedding] = {}
        for feature in features:
            table = tables[feature.table]
            if feature.pooling == "none":
                layers[feature.name] = Embedding(table, feature.length)
            else:
                layers[feature.name] = EmbeddingBag(table, feature.pooling)
        self.embeddings = EmbeddingCollection(layers) if layers else None

    def forward(self, inputs: Inputs) -> Embedded:
        """Looks up every feature of a batch."""
        assert self.embeddings is not None  # models check that there are features
        embedded: Embedded = self.embeddings(inputs)
        return embedded

    def dense(self, inputs: Inputs) -> list[Tensor]:
        """Returns the dense groups, (B, W) each; an empty list when the spec has no dense feature."""
        return [inputs[group] for group in self.groups]

    def expect_pooled(self, model: str, *, same_dim: bool) -> int:
        """Returns the dim of the features. Raises ConfigError when the model cannot take them as they are."""
        if self.sequence_names:
            raise ConfigError(
                f"feature {self.sequence_names[0]!r} has pooling none; {model} takes sum, mean or weighted (din takes "
                "sequences)",
                field=f"features.{self.sequence_names[0]}.pooling",
            )
        if not self.pooled_names:
            raise ConfigError(f"{model} needs at least one feature with output: ids", field="features")
        dims = {self.dims[name] for name in self.pooled_names}
        if same_dim and len(dims) > 1:
            raise ConfigError(f"{model} needs one dim for all tables, got {sorted(dims)}", field="tables")
        return dims.pop()


def mlp(width: int, hidden: Sequence[int], *, dropout: float = 0.0, out: int | None = None) -> nn.Sequential:
    """Builds an MLP: (B, width) -> hidden layers with ReLU -> (B, out), or (B, last hidden) without `out`."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU()]
        if dropout > 0.0:
            layers.append(nn.Dropout(dropout))
        width = size
    if out is not None:
        layers.append(nn.Linear(width, out))
    return nn.Sequential(*layers)
