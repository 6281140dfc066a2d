"""The plan of a cut: for each call of an embedding layer, which feature takes its place and in what shape.

B rows of the batch, D dim of a table, L length of a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from storage.checkpoint import GraphInput
from storage.errors import ConfigError, Unsupported
from storage.features import Column, FeatureSpec
from storage.initializers import AbsentRows
from storage.specs import LookupLevel
from trainer.embedding import Chain, Embedding, EmbeddingBag
from trainer.publishing.embedding_layers import TableNames, TableSource, layer_absent, layer_chain, layer_dim
from trainer.publishing.recording import LayerCall, Recording

# Shapes of a layer's result: (B, D), (B, 1, D), (B, L, D), or our own layer's rows (B, L, D) with lengths (B,).
Shape = Literal["pooled", "single", "rows", "rows_lengths"]


@dataclass(frozen=True)
class CutCall:
    """Names one call of an embedding layer, in the order of the run, and the feature whose lookup replaces it."""

    path: str
    feature: str
    shape: Shape


@dataclass(frozen=True)
class DenseInput:
    """A float tensor of the sample."""

    leaf: str
    #: The dense group that fills it, (B, width).
    group: str
    width: int
    #: Shape of the sample's own tensor.
    shape: tuple[int, ...]


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

    def graph_inputs(self) -> list[GraphInput]:
        """Returns the inputs of the dense half, in order: dense groups, then for each feature its lookup and its
        lengths.
        """
        inputs = [
            GraphInput(name=f"{entry.group}.dense", kind="dense", source=entry.group, shape=(-1, entry.width))
            for entry in self.dense
        ]
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
        feature = _feature_of(call, spec, leaves)
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
        fallback = _checked_chain(call, spec, feature)
        with_lengths = pooling == "none"
        calls.append(CutCall(call.path, feature, "rows_lengths" if with_lengths else "pooled"))
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
    return CutPlan(spec, tuple(calls), tuple(features.values()), dense, tuple(names.sources()), columns, rows)


def _checked_chain(call: LayerCall, spec: FeatureSpec, feature: str) -> tuple[LookupLevel, ...]:
    """Returns the chain of a feature. Raises ConfigError when the layer's is another one."""
    fallback, chain = spec.lookup(feature).fallback, layer_chain(call.layer) or Chain()
    levels = [level for level in fallback if level.feature]
    said = [(level.feature, level.table, level.parallel) for level in levels]
    given = [values.leaf.removesuffix(".values") for values, _ in call.levels]
    layers = [(name, level.table.name, level.parallel) for name, level in zip(given, chain.levels, strict=True)]
    mean = next((level.table for level in fallback if not level.feature), None)
    own = None if chain.mean is None else chain.mean.name
    if layers != said or mean != own:
        raise ConfigError(
            f"layer {call.path!r}: ids without a row read {_chain_said(layers, own)}; the feature {feature!r} says "
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
        return layer.mode if call.weights is None else "weighted", 0
    raise Unsupported(f"layer {call.path!r}: nn.Embedding has no bags; use nn.EmbeddingBag, or trainer.Embedding")


def _feature_of(call: LayerCall, spec: FeatureSpec, leaves: Mapping[str, Tensor]) -> str:
    name = call.values.leaf.removesuffix(".values")
    known: Sequence[str] = [entry.name for entry in spec.ids_features]
    offsets = call.offsets
    fits = (
        name in known
        and call.values.leaf == f"{name}.values"
        and call.values.is_whole(leaves[call.values.leaf])
        and offsets is not None
        and offsets.leaf == f"{name}.offsets"
        and offsets.is_whole(leaves[offsets.leaf])
    )
    weights = call.weights
    fits = fits and (weights is None or (weights.leaf == f"{name}.weights" and weights.is_whole(leaves[weights.leaf])))
    if not fits:
        got = [None if view is None else view.leaf for view in (call.values, offsets, weights)]
        raise Unsupported(
            f"layer {call.path!r}: with a spec a layer takes F.values and F.offsets of one feature F as they are, and "
            f"F.weights where it is weighted; it got {got}"
        )
    if isinstance(call.layer, Embedding | EmbeddingBag) and call.layer.table.transforms:
        steps = ", ".join(step.op for step in call.layer.table.transforms)
        raise Unsupported(
            f"layer {call.path!r}: its table makes ids of rows by itself ({steps}); with a spec they are transforms of "
            f"the feature {name!r}, so give the layer a plain EmbeddingTable"
        )
    if isinstance(call.layer, nn.EmbeddingBag) and not call.layer.include_last_offset:
        raise Unsupported(f"layer {call.path!r}: F.offsets ends with the number of ids; set include_last_offset=True")
    return name
