"""The base of all models of the zoo: their inputs, their outputs, and the layers that they share.

A model's inputs are a dict: each dense group by its name, (B, W) float32; and for each ids feature F its bags,
`F.values` (N,) int64 and `F.offsets` (B + 1,) int64, with pooling weighted `F.weights` (N,) float32. Shape letters: B
batch, W columns, N ids, D dim, L length, K values of all heads, C classes of a task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from storage.errors import ConfigError
from storage.features.spec import FeatureSpec
from trainer.data.batches import Batch
from trainer.embedding import (
    Chain,
    ChainLevel,
    Combination,
    Embedded,
    Embedding,
    EmbeddingBag,
    EmbeddingCollection,
    EmbeddingTable,
)
from trainer.losses import batch_loss, joint_logits
from trainer.lowering import CombinedFeature
from trainer.models import blocks
from trainer.task_config import Targets, TaskConfig

Inputs = Mapping[str, Tensor]


class RankingModel(nn.Module, ABC):
    """A model with an output for each task: the probability of its label, those of its classes, or a number."""

    #: Added to the log-odds of a binary task, where training saw a share of its negative rows.
    log_odds_shift = 0.0
    #: The method that `learn` gives the inputs: it has the precision of the training, and is compiled if that is asked.
    dense_method = "logits"

    def __init__(self, features: FeatureEmbeddings) -> None:
        super().__init__()
        self.features = features
        self.tasks = features.tasks

    @abstractmethod
    def logits(self, inputs: Inputs) -> Tensor:
        """The values of the heads of all tasks, side by side, (B, K): log-odds of a binary task, for one."""

    def forward(self, inputs: Inputs) -> dict[str, Tensor]:
        """Returns the output of each task by its name, (B, 1), or (B, C) for C classes.

        A task with `given` has the probability that both happen, and under `conditional` that of its head.
        """
        logits, tasks = self.logits(inputs), self.tasks
        if len(tasks) == 1:
            shifted = logits + self.log_odds_shift if self.log_odds_shift else logits
            return {tasks[0].name: _output(tasks[0], shifted)}
        outputs: dict[str, Tensor] = {}
        for task, head in zip(tasks, torch.split(logits, [task.width for task in tasks], dim=1), strict=True):
            output = outputs[task.name] = _output(task, head)
            if task.given is not None:
                outputs[task.name] = output * outputs[task.given]
                outputs[task.conditional] = output
        return outputs

    def learn(self, batch: Batch, targets: Targets) -> tuple[Tensor, Tensor]:
        """Returns the loss of a batch in training, and the values of the heads (B, K) for the rows."""
        logits = self.logits(batch.inputs)
        self._check_logits(logits, (batch.rows, targets.width))
        logits = joint_logits(logits, targets.tasks)
        return batch_loss(logits, batch, targets), logits

    def _check_logits(self, logits: object, wanted: tuple[int, int]) -> None:
        expected = f"expected a float32 tensor {wanted}: a value a row for each head (features.heads)"
        if not isinstance(logits, Tensor):
            said = f"gave {type(logits).__name__}, {expected}"
        elif logits.shape != wanted:
            said = f"gave {tuple(logits.shape)}, {expected}"
        elif logits.dtype != torch.float32:
            said = f"gave {logits.dtype}, {expected}"
        elif torch.is_grad_enabled() and not logits.requires_grad:
            said = "gave values without a gradient, so nothing can be learned; leave detach() and torch.no_grad() out"
        else:
            return
        raise ConfigError(f"model: {type(self).__name__}.logits {said}", field="model.type")

    def output_biases(self) -> Sequence[Tensor]:
        """Weights that are added to the values of the heads: joined, (K,); none for a model that has no such weights.

        Those of a regression begin at the mean label.
        """
        return ()

    @staticmethod
    def layouts(inputs: blocks.InputLayout, weights: Mapping[str, blocks.Shape]) -> dict[str, blocks.WeightLayout]:
        """The layouts of the weights, by name, of a model of this class over these inputs.

        weights: shapes of its weights. It follows `logits`: what is joined there, side by side, is named here in the
        same order. Names that a model does not have may be among them. A class that gives none starts from another run
        by the names and shapes of its weights.
        """
        return {}


class FeatureEmbeddings(nn.Module):
    """The lookups of all ids features of a spec, in one call, and its dense groups side by side.

    combined: features whose rows are made of those of several features of the spec; a model sees them as one. tasks:
    what is predicted from them; without any, it is one binary label. fallback_share: that of every chain.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        tables: Mapping[str, EmbeddingTable],
        combined: Sequence[CombinedFeature] = (),
        tasks: Sequence[TaskConfig] = (TaskConfig(label="label"),),
        fallback_share: float = 0.0,
    ) -> None:
        super().__init__()
        self.tasks = tuple(tasks)
        #: Values that a model gives for each row: those of the heads of all tasks, K.
        self.heads = sum(task.width for task in tasks)
        layers: dict[str, EmbeddingBag | Embedding] = {}
        levels: dict[str, list[str]] = {}
        for feature in spec.ids_features:
            table, chain = tables[feature.table], None
            if fallback := spec.lookup(feature.name).fallback:
                found = [ChainLevel(tables[level.table], level.parallel) for level in fallback if level.feature]
                mean = next((tables[level.table] for level in fallback if not level.feature), None)
                chain = Chain(tuple(found), mean, fallback_share)
                levels[feature.name] = [level.feature for level in fallback if level.feature]
            if feature.pooling == "none":
                layers[feature.name] = Embedding(table, feature.length, absent=feature.absent_rows, chain=chain)
            else:
                layers[feature.name] = EmbeddingBag(table, feature.pooling, absent=feature.absent_rows, chain=chain)
        self.embeddings = EmbeddingCollection(layers, levels) if layers else None
        self.combining = CombinedFeatures(combined, tables, spec) if combined else None
        of_part = {part: entry for entry in combined for part in entry.parts}
        self.dims: dict[str, int] = {}
        self.lengths: dict[str, int] = {}
        poolings: dict[str, str] = {}
        for feature in spec.ids_features:
            entry = of_part.get(feature.name)
            name = feature.name if entry is None else entry.name
            self.dims[name] = tables[feature.table].dim if entry is None else entry.dim
            self.lengths[name] = feature.length
            poolings[name] = feature.pooling
        self.pooled_names = tuple(name for name, pooling in poolings.items() if pooling != "none")
        self.sequence_names = tuple(name for name, pooling in poolings.items() if pooling == "none")
        #: Features whose rows are made of several tables.
        self.combined_names = tuple(entry.name for entry in combined)
        self.groups = tuple(spec.dense_groups)
        self.group_widths = dict(spec.dense_groups)
        self.dense_width = sum(spec.dense_groups.values())
        #: Values of all pooled rows and all dense features, side by side.
        self.width = sum(self.dims[name] for name in self.pooled_names) + self.dense_width

    def forward(self, inputs: Inputs) -> Embedded:
        """Looks up every feature of a batch."""
        assert self.embeddings is not None  # models check that there are features
        embedded: Embedded = self.embeddings(inputs)
        return embedded if self.combining is None else self._combined(embedded)

    def _combined(self, embedded: Embedded) -> Embedded:
        assert self.combining is not None
        rows = dict(zip(embedded.dims, embedded.parts(), strict=True))
        sequences = {name: pair[0] for name, pair in embedded.sequences.items()}
        lengths = {name: pair[1] for name, pair in embedded.sequences.items()}
        found, long = self.combining(rows | sequences), self.combining.lengths(lengths)
        dims = {name: self.dims[name] for name in self.pooled_names}
        return Embedded(
            [found[name] for name in dims], dims, {name: (found[name], long[name]) for name in self.sequence_names}
        )

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


class CombinedFeatures(nn.Module):
    """Makes the rows of combined features; those of one table share what combines them."""

    def __init__(
        self, combined: Sequence[CombinedFeature], tables: Mapping[str, EmbeddingTable], spec: FeatureSpec
    ) -> None:
        super().__init__()
        self._combined = tuple(combined)
        self._names = {entry.parts[0]: entry.name for entry in combined}
        self._rest = frozenset(part for entry in combined for part in entry.parts[1:])
        dims = {entry.table: [tables[spec.feature(part).table].dim for part in entry.parts] for entry in self._combined}
        kinds = {entry.table: entry.combination for entry in combined}
        # A prefix, because a module cannot be called like one of ModuleDict's methods.
        self.tables = nn.ModuleDict({_key(table): Combination(kinds[table], dims[table]) for table in kinds})

    def forward(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Maps rows by feature of the spec to rows by feature of the model."""
        made = {
            entry.parts[0]: self.tables[_key(entry.table)]([rows[part] for part in entry.parts])
            for entry in self._combined
        }
        return {self._names.get(name, name): made.get(name, rows[name]) for name in rows if name not in self._rest}

    def lengths(self, lengths: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Maps lengths of sequences by feature of the spec to those by feature of the model."""
        return {self._names.get(name, name): each for name, each in lengths.items() if name not in self._rest}


def _key(table: str) -> str:
    return f"of_{table}"


def _output(task: TaskConfig, logits: Tensor) -> Tensor:
    match task.loss:
        case "binary_cross_entropy":
            return torch.sigmoid(logits)
        case "softmax_cross_entropy":
            return torch.softmax(logits, dim=1)
        case _:
            return logits


def last_bias(layers: nn.Module) -> Tensor:
    """Returns the bias of the last layer of an MLP that `mlp` built with `out`."""
    assert isinstance(layers, nn.Sequential)
    layer = layers[-1]
    assert isinstance(layer, nn.Linear)
    return layer.bias


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
