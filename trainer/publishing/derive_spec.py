"""Derives a feature spec from the sample batch, for modules that know nothing of our types.

Every float tensor becomes a dense input, every tensor of ids an input whose columns (or bags) are features. A module
knows no nulls, so its inputs take none. B rows of the batch, W columns of a tensor, n ids of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from storage.errors import InvalidInput, Unsupported
from storage.features import Column, Feature, FeatureSpec, InputSpec, column_from_jagged, column_from_numpy
from storage.features.transforms import Select, Slice, Transform
from storage.initializers import AbsentRows
from trainer.embedding import Embedding, EmbeddingBag
from trainer.publishing.cut_plan import CutCall, CutFeature, CutPlan, DenseInput, Shape
from trainer.publishing.embedding_layers import (
    EmbeddingLayer,
    TableNames,
    free_name,
    layer_absent,
    layer_chain,
    layer_dim,
)
from trainer.publishing.recording import LayerCall, Recording

_ID_DTYPES = {torch.int64: "INT64", torch.int32: "INT32"}
_LENGTH_AT_LEAST = 1024


@dataclass(frozen=True)
class _Use:
    """One call's use of a sample tensor."""

    leaf: str
    #: The columns that it reads; None for bags.
    columns: tuple[int, int] | None
    pooling: str
    length: int
    shape: Shape
    #: The sample tensor that holds a weight for each id, "" for none.
    weights: str = ""
    #: What ids without a row read as; None: what the table says.
    absent: AbsentRows | None = None


def plan_from_sample(recording: Recording, leaves: Mapping[str, Tensor], rows: int) -> CutPlan:
    """Plans the cut of a module that takes the sample's tensors. rows: B.

    Raises Unsupported, naming the layer and the tensor, for a use that no feature can describe.
    """
    names = TableNames()
    inputs: dict[str, InputSpec] = {}
    columns: dict[str, Column] = {}
    offsets: dict[str, np.ndarray] = {}
    features: dict[tuple[_Use, str], tuple[Feature, CutFeature]] = {}
    calls: list[CutCall] = []
    dense: list[DenseInput] = []
    taken: set[str] = set()
    weighs: dict[str, str] = {}
    for name, leaf in leaves.items():
        if leaf.is_floating_point() and name in recording.used:
            width = _dense_width(name, leaf, rows)
            inputs[name] = InputSpec(name=name, dtype="FP32", width=width, nulls="error")
            columns[name] = column_from_numpy("FP32", leaf.reshape(rows, width).numpy())
            dense.append(DenseInput(name, name, width, tuple(leaf.shape)))
            taken.add(name)
    for call in recording.calls:
        if layer_chain(call.layer) is not None:
            raise Unsupported(
                f"layer {call.path!r} has a chain, whose levels are features of a spec; publish it with `spec`, whose "
                "feature names them (fallback)"
            )
        leaf = leaves[call.values.leaf]
        use = replace(_use(call, leaf, leaves, rows), absent=layer_absent(call.layer))
        if use.columns is None:
            bags = _bags(call, leaf, leaves, rows)
            known = offsets.setdefault(use.leaf, bags)
            if not np.array_equal(known, bags):
                raise Unsupported(f"layer {call.path!r}: the ids {use.leaf!r} are cut into bags in two ways; use one")
        if (use.leaf in offsets) != (use.columns is None):
            raise Unsupported(f"layer {call.path!r}: {use.leaf!r} is used as bags and as columns; use two tensors")
        if use.leaf not in inputs:
            inputs[use.leaf], columns[use.leaf] = _ids_input(use.leaf, leaf, offsets.get(use.leaf), rows)
        if use.weights:
            if weighs.setdefault(use.weights, use.leaf) != use.leaf:
                raise Unsupported(
                    f"layer {call.path!r}: the weights {use.weights!r} are those of the ids {weighs[use.weights]!r} "
                    "already; give each tensor of ids its own"
                )
            inputs[use.weights], columns[use.weights] = _weights_input(
                use.weights, leaves[use.weights], inputs[use.leaf], offsets.get(use.leaf)
            )
        table = names.name(call.path, call.layer)
        if (use, table) not in features:
            features[use, table] = _feature(use, table, call.layer, inputs[use.leaf].width, taken)
        calls.append(CutCall(call.path, features[use, table][1].name, use.shape))
    dense_features = [
        Feature(name=entry.group, inputs=(entry.leaf,), output="dense", group=entry.group) for entry in dense
    ]
    spec = FeatureSpec(
        inputs=tuple(inputs[name] for name in leaves if name in inputs),
        features=(*dense_features, *(feature for feature, _ in features.values())),
    )
    cuts = tuple(cut for _, cut in features.values())
    return CutPlan(spec, tuple(calls), cuts, tuple(dense), tuple(names.sources()), columns, rows)


def _dense_width(name: str, leaf: Tensor, rows: int) -> int:
    if leaf.dtype != torch.float32:
        raise Unsupported(f"input {name!r} is {leaf.dtype}; dense features are float32: convert the sample and module")
    if leaf.dim() == 0 or leaf.shape[0] != rows:
        raise Unsupported(
            f"input {name!r} has the shape {list(leaf.shape)}, but the outputs have {rows} rows; the batch comes first"
        )
    return max(1, leaf.numel() // rows)


def _use(call: LayerCall, leaf: Tensor, leaves: Mapping[str, Tensor], rows: int) -> _Use:
    layer, view = call.layer, call.values
    where = f"layer {call.path!r}: its ids are a view of {view.leaf!r}"
    if leaf.dtype not in _ID_DTYPES:
        raise Unsupported(f"layer {call.path!r}: the ids {view.leaf!r} are {leaf.dtype}; use int64")
    if isinstance(layer, Embedding | EmbeddingBag) or call.offsets is not None:
        if not view.is_whole(leaf) or leaf.dim() != 1:
            raise Unsupported(
                f"{where} of shape {list(view.shape)}; bags are taken from a whole tensor of one dimension"
            )
        if isinstance(layer, Embedding):
            return _Use(view.leaf, None, "none", layer.length, "rows_lengths")
        assert isinstance(layer, EmbeddingBag | nn.EmbeddingBag)
        weights = _weights(call, leaf, leaves, None)
        return _Use(view.leaf, None, "weighted" if weights else layer.mode, 0, "pooled", weights)
    columns = view.columns(leaf)
    if columns is None:
        raise Unsupported(
            f"{where} of shape {list(view.shape)}, strides {list(view.strides)}; only x, x[:, k] and x[:, a:b] of a "
            "tensor (B, W) become features"
        )
    if view.shape[0] != rows:
        raise Unsupported(f"{where} with {view.shape[0]} rows, but the outputs have {rows}; the batch comes first")
    count = columns[1] - columns[0]
    if isinstance(layer, nn.EmbeddingBag):
        weights = _weights(call, leaf, leaves, columns)
        return _Use(view.leaf, columns, "weighted" if weights else layer.mode, 0, "pooled", weights)
    if len(view.shape) == 1:
        return _Use(view.leaf, columns, "sum", 0, "pooled")
    if count == 1:
        return _Use(view.leaf, columns, "sum", 0, "single")
    return _Use(view.leaf, columns, "none", count, "rows")


def _weights(call: LayerCall, ids: Tensor, leaves: Mapping[str, Tensor], columns: tuple[int, int] | None) -> str:
    """Returns the tensor that holds the weights of a call, "" for none: one for each id, in the place of the id."""
    view = call.weights
    if view is None:
        return ""
    leaf = leaves[view.leaf]
    if leaf.dtype != torch.float32:
        raise Unsupported(f"layer {call.path!r}: the weights {view.leaf!r} are {leaf.dtype}; use float32")
    beside = view.is_whole(leaf) if columns is None else view.columns(leaf) == columns
    if leaf.shape != ids.shape or not beside:
        raise Unsupported(
            f"layer {call.path!r}: its weights are a view of {view.leaf!r} {list(leaf.shape)}; take them from a tensor "
            f"of the shape of the ids {call.values.leaf!r} {list(ids.shape)}, from the same places"
        )
    return view.leaf


def _bags(call: LayerCall, leaf: Tensor, leaves: Mapping[str, Tensor], rows: int) -> np.ndarray:
    """Returns the bags' offsets with the end behind the last, (B + 1,) int64."""
    assert call.offsets is not None
    view = call.offsets
    values = torch.as_strided(leaves[view.leaf], view.shape, view.strides, view.start).to(torch.int64).numpy()
    closed = isinstance(call.layer, Embedding | EmbeddingBag) or call.layer.include_last_offset
    bags = values if closed else np.append(values, len(leaf))
    if bags.ndim != 1 or len(bags) != rows + 1:
        raise Unsupported(
            f"layer {call.path!r}: {len(bags) - 1} bags, but the outputs have {rows} rows; one bag a row is served"
        )
    if bags[0] != 0 or bags[-1] != len(leaf) or np.any(np.diff(bags) < 0):
        raise InvalidInput(
            f"layer {call.path!r}: the offsets {view.leaf!r} must rise from 0 to {len(leaf)}, the number of ids",
            field=view.leaf,
        )
    return np.ascontiguousarray(bags)


def _ids_input(name: str, leaf: Tensor, bags: np.ndarray | None, rows: int) -> tuple[InputSpec, Column]:
    dtype = _ID_DTYPES[leaf.dtype]
    if bags is None:
        width = 1 if leaf.dim() == 1 else leaf.shape[1]
        fixed = InputSpec.model_validate({"name": name, "dtype": dtype, "width": width, "nulls": "error"})
        return fixed, column_from_numpy(dtype, leaf.reshape(rows, width).numpy())
    longest = int(np.diff(bags).max(initial=0))
    entry = InputSpec.model_validate(
        {
            "name": name,
            "dtype": dtype,
            "kind": "list",
            "max_length": max(_LENGTH_AT_LEAST, longest),
            "nulls": "error",
        }
    )
    return entry, column_from_jagged(dtype, leaf.numpy(), bags)


def _weights_input(name: str, leaf: Tensor, ids: InputSpec, bags: np.ndarray | None) -> tuple[InputSpec, Column]:
    spec = ids.model_copy(update={"name": name, "dtype": "FP32"})
    if bags is None:
        return spec, column_from_numpy("FP32", leaf.reshape(-1, ids.width).numpy())
    return spec, column_from_jagged("FP32", leaf.numpy(), bags)


def _feature(use: _Use, table: str, layer: EmbeddingLayer, width: int, taken: set[str]) -> tuple[Feature, CutFeature]:
    transforms: tuple[Transform, ...] = ()
    name = use.leaf
    if use.columns is not None and use.columns != (0, width):
        start, stop = use.columns
        name = f"{use.leaf}_{start}" if stop - start == 1 else f"{use.leaf}_{start}_{stop}"
        transforms = (Select(index=start),) if stop - start == 1 else (Slice(start=start, stop=stop),)
    if isinstance(layer, Embedding | EmbeddingBag):
        transforms += layer.table.transforms
    if name in taken:
        name = f"{name}_{table}"
    name = free_name(name, taken)
    taken.add(name)
    absent = None
    if use.absent is not None:
        initializer = use.absent.initializer
        absent = {"type": initializer.kind, "scale": initializer.scale, "seed": use.absent.seed}
    feature = Feature.model_validate(
        {
            "name": name,
            "inputs": (use.leaf,),
            "transforms": transforms,
            "output": "ids",
            "table": table,
            "pooling": use.pooling,
            "length": use.length,
            "weights": use.weights,
            "absent": absent,
        }
    )
    with_lengths = use.shape == "rows_lengths"
    return feature, CutFeature(name, table, layer_dim(layer), use.pooling, use.length, with_lengths, use.absent)
