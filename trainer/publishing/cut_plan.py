"""The plan of a cut: for each call of an embedding layer, which feature takes its place and in what shape.

B rows of the batch, D dim of a table, L length of a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from storage.checkpoint import GraphInput
from storage.errors import ConfigError, Unsupported
from storage.features import Column, FeatureSpec
from storage.initializers import AbsentRows
from storage.specs import LookupLevel
from trainer.embedding import Chain, Embedding, EmbeddingBag
from trainer.publishing.call_layout import Placement, whole_leaf
from trainer.publishing.embedding_layers import TableNames, TableSource, layer_absent, layer_chain, layer_dim
from trainer.publishing.recording import LayerCall, Recording
from trainer.publishing.tracing import Traced, Tracer

# What a layer's result is: one feature's (B, D), or our own layer's rows (B, L, D) with lengths (B,); rows of several
# features, put together; or what the layer itself makes of ids that depend on no value of the batch.
Shape = Literal["pooled", "rows_lengths", "rows", "own"]


@dataclass(frozen=True)
class Reduction:
    """Describes what a layer over bags makes of rows (S, n, D), which the dense graph computes where no lookup can."""

    mode: Literal["sum", "mean", "max"]
    #: The id that is left out, if any.
    padding: int | None
    is_weighted: bool


@dataclass(frozen=True)
class CutCall:
    """Names one call of an embedding layer, in the order of the run, and the features whose lookups replace it."""

    path: str
    shape: Shape
    features: tuple[str, ...] = ()
    #: With shape rows: ids that are the same in every row; their rows follow those of the features.
    constants: tuple[int, ...] = ()
    #: With shape rows: for each id of a row of the call, its number among the rows of features and constants.
    order: tuple[int, ...] = ()
    placement: Placement | None = None
    reduction: Reduction | None = None


@dataclass(frozen=True)
class DenseInput:
    """A tensor of the sample that the dense half takes as it is."""

    leaf: str
    #: The dense group or, for integers, the feature that fills it, (B, width).
    group: str
    width: int
    #: Shape of the sample's own tensor.
    shape: tuple[int, ...]
    #: The sample's own type; float32 for dense groups.
    dtype: torch.dtype = torch.float32
    #: The axis of the batch.
    axis: int = 0

    @property
    def is_integer(self) -> bool:
        """True for integers, False for a dense group."""
        return not self.dtype.is_floating_point

    def graph_input(self) -> GraphInput:
        """Returns the input of the dense graph that it is."""
        shape = (-1, self.width)
        if self.is_integer:
            return GraphInput(name=f"{self.group}.ids", kind="ids", source=self.group, shape=shape, dtype="INT64")
        return GraphInput(name=f"{self.group}.dense", kind="dense", source=self.group, shape=shape)

    def restored(self, values: Tensor) -> Tensor:
        """Returns (B, width) as the sample's own tensor is."""
        if self.axis == 1:
            return values.t().to(self.dtype)
        # With a spec, the values of a feature follow one another.
        is_flat = len(self.shape) == 1 and self.width > 1
        own = values.reshape(-1) if is_flat else values.reshape(values.shape[0], *self.shape[1:])
        return own if own.dtype == self.dtype else own.to(self.dtype)


@dataclass(frozen=True)
class CutFeature:
    """A feature as the graph takes it."""

    name: str
    table: str
    dim: int
    pooling: str
    #: Length of a sequence with pooling none, else 0.
    length: int
    #: True if the graph takes the lengths too.
    with_lengths: bool
    #: What ids without a row read as; None: what the table says.
    absent: AbsentRows | None = None
    #: The rows that ids without one read first.
    fallback: tuple[LookupLevel, ...] = ()


@dataclass(frozen=True)
class CutPlan:
    """Everything that the two halves agree on."""

    spec: FeatureSpec
    calls: tuple[CutCall, ...]
    features: tuple[CutFeature, ...]
    dense: tuple[DenseInput, ...]
    tables: tuple[TableSource, ...]
    columns: Mapping[str, Column]
    rows: int
    #: Paths of layers whose weight the dense half reads.
    weights_read: frozenset[str] = frozenset()
    #: Paths of parameters in which the module looks rows up by itself.
    parameters: frozenset[str] = frozenset()
    #: Whether the module writes into its inputs or into results of lookups.
    writes_inputs: bool = False
    #: Whether the module packs sequences, which the dense half computes over padded rows.
    packs: bool = False

    @property
    def own_layers(self) -> frozenset[str]:
        """The paths of layers that are weights of the dense half alone: no feature looks up rows of them."""
        looked_up = {call.path for call in self.calls if call.shape != "own"}
        return frozenset(call.path for call in self.calls if call.path not in looked_up)

    def graph_inputs(self) -> list[GraphInput]:
        """Returns the inputs of the dense half, in order: dense groups and integers, then for each feature its
        lookup and its lengths.
        """
        inputs = [entry.graph_input() for entry in self.dense]
        for feature in self.features:
            if feature.pooling == "none":
                shape: tuple[int, ...] = (-1, feature.length, feature.dim)
                inputs.append(GraphInput(name=f"{feature.name}.rows", kind="rows", source=feature.name, shape=shape))
            else:
                shape = (-1, feature.dim)
                inputs.append(
                    GraphInput(name=f"{feature.name}.pooled", kind="pooled", source=feature.name, shape=shape)
                )
            if feature.with_lengths:
                inputs.append(
                    GraphInput(
                        name=f"{feature.name}.lengths", kind="lengths", source=feature.name, shape=(-1,), dtype="INT64"
                    )
                )
        return inputs


def plan_with_spec(
    spec: FeatureSpec, columns: Mapping[str, Column], rows: int, recording: Recording, leaves: Mapping[str, Tensor]
) -> CutPlan:
    """Plans the cut of a module that takes the feature engine's results for `spec`: groups, F.values and F.offsets.

    Raises Unsupported or ConfigError, naming the layer, when module and spec disagree.
    """
    names = TableNames()
    calls: list[CutCall] = []
    features: dict[str, CutFeature] = {}
    for call in recording.calls:
        if call.loss is not None or call.offsets_loss is not None:
            raise call.computed_ids()
        if call.values is None:
            calls.append(CutCall(call.path, "own"))
            continue
        feature = _feature_of(call, spec, recording.tracer)
        entry = spec.feature(feature)
        pooling, length = layer_pooling(call)
        if (pooling, length) != (entry.pooling, entry.length):
            raise ConfigError(
                f"layer {call.path!r} gives pooling {pooling}, length {length}; the feature {feature!r} says "
                f"{entry.pooling}, {entry.length}",
                field=f"features.{feature}.pooling",
            )
        absent = layer_absent(call.layer)
        if absent != entry.absent_rows:
            raise ConfigError(
                f"layer {call.path!r} reads ids without a row as {_said(absent)}; the feature {feature!r} says "
                f"{_said(entry.absent_rows)}",
                field=f"features.{feature}.absent",
            )
        table = names.name(call.path, call.layer, entry.table)
        fallback = _checked_chain(call, spec, feature, recording.tracer)
        with_lengths = pooling == "none"
        calls.append(CutCall(call.path, "rows_lengths" if with_lengths else "pooled", (feature,)))
        dim = layer_dim(call.layer)
        features[feature] = CutFeature(feature, table, dim, pooling, length, with_lengths, absent, fallback)
    # The server looks up every ids feature of the spec, so one that the module never reads must not be there.
    for entry in spec.ids_features:
        if entry.name not in features:
            raise ConfigError(
                f"the module reads no row of the feature {entry.name!r}; remove it from the spec",
                field=f"features.{entry.name}",
            )
    for call in recording.calls:
        if (chain := layer_chain(call.layer)) is not None and chain.mean is not None:
            names.add(chain.mean)
    dense = tuple(
        DenseInput(group, group, width, (rows, width))
        for group, width in spec.dense_groups.items()
        if group in recording.used
    )
    used = {name.rpartition(".")[0]: name for name in recording.used if name not in spec.dense_groups}
    for name, key in used.items():
        if name not in spec.integers or key != f"{name}.values":
            raise Unsupported(
                f"{key!r} is used by {recording.used[key]} outside the embedding layers; only features with `output: "
                "integers` enter the dense graph as they are"
            )
    integers = tuple(
        DenseInput(f"{name}.values", name, width, (rows * width,), torch.int64)
        for name, width in spec.integers.items()
        if name in used
    )
    inputs = (*dense, *integers)
    read = weights_read(recording, calls)
    tables, cuts = tuple(names.sources()), tuple(features.values())
    parameters = frozenset(recording.parameters)
    writes = recording.tracer.writes_inputs
    packs = recording.packs
    return CutPlan(spec, tuple(calls), cuts, inputs, tables, columns, rows, read, parameters, writes, packs)


def weights_read(recording: Recording, calls: Sequence[CutCall]) -> frozenset[str]:
    """Returns the paths of layers whose weight the dense half reads."""
    called = {call.path for call in calls if call.shape == "own" or call.constants}
    return frozenset(recording.weights_read | called)


def _checked_chain(call: LayerCall, spec: FeatureSpec, feature: str, tracer: Tracer) -> tuple[LookupLevel, ...]:
    """Returns the chain of a feature. Raises ConfigError when the layer's is another one."""
    fallback, chain = spec.lookup(feature).fallback, layer_chain(call.layer) or Chain()
    levels = [level for level in fallback if level.feature]
    said = [(level.feature, level.table, level.parallel) for level in levels]
    given = [(_leaf(values, tracer) or "").removesuffix(".values") for values in call.levels]
    layers = [(name, level.table.name, level.parallel) for name, level in zip(given, chain.levels, strict=True)]
    mean = next((level.table for level in fallback if not level.feature), None)
    own = None if chain.mean is None else chain.mean.name
    if layers != said or mean != own:
        raise ConfigError(
            f"{call.where}: ids without a row read {_chain_said(layers, own)}; the feature {feature!r} says "
            f"{_chain_said(said, mean)}",
            field=f"features.{feature}.fallback",
        )
    return fallback


def _chain_said(levels: Sequence[tuple[str, str, bool]], mean: str | None) -> str:
    parts = [f"{name} (table {table}{', parallel' if parallel else ''})" for name, table, parallel in levels]
    return ", ".join([*parts, *([f"the mean (table {mean})"] if mean else [])]) or "no other rows"


def _said(absent: AbsentRows | None) -> str:
    return "the table says" if absent is None else f"{absent} of seed {absent.seed}"


def layer_pooling(call: LayerCall) -> tuple[str, int]:
    """Returns pooling and length of a layer over bags. Raises Unsupported for nn.Embedding, which has no bags."""
    layer = call.layer
    if isinstance(layer, Embedding):
        return "none", layer.length
    if isinstance(layer, EmbeddingBag | nn.EmbeddingBag):
        return "weighted" if call.is_weighted else layer.mode, 0
    raise Unsupported(f"{call.where}: nn.Embedding has no bags; use nn.EmbeddingBag, or trainer.Embedding")


def _feature_of(call: LayerCall, spec: FeatureSpec, tracer: Tracer) -> str:
    found = [_leaf(each, tracer) for each in (call.values, call.offsets_of, call.weights)]
    name = (found[0] or "").removesuffix(".values")
    wanted = [f"{name}.values", f"{name}.offsets", f"{name}.weights" if call.is_weighted else None]
    if name not in {entry.name for entry in spec.ids_features} or found != wanted:
        raise Unsupported(
            f"{call.where}: with a spec a layer takes F.values and F.offsets of one feature F as they are, and "
            f"F.weights where it is weighted; it got {found}"
        )
    if isinstance(call.layer, Embedding | EmbeddingBag) and call.layer.table.transforms:
        steps = ", ".join(step.op for step in call.layer.table.transforms)
        raise Unsupported(
            f"{call.where}: its table makes ids of rows by itself ({steps}); with a spec they are transforms of "
            f"the feature {name!r}, so give the layer a plain EmbeddingTable"
        )
    if isinstance(call.layer, nn.EmbeddingBag) and not call.layer.include_last_offset:
        raise Unsupported(f"{call.where}: F.offsets ends with the number of ids; set include_last_offset=True")
    return name


def _leaf(traced: Traced | None, tracer: Tracer) -> str | None:
    """Returns the name of the tensor that this is, element by element and unchanged; None where it is none."""
    found = None if traced is None else whole_leaf(traced, tracer)
    return found[0] if found is not None and not found[1] else None
