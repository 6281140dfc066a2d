"""Derives a feature spec from the sample batch, for modules that know nothing of our types.

Every float tensor becomes a dense input, every tensor of ids an input whose columns (or bags) are features, and every
tensor of integers that the module computes with an input that the dense graph takes as it is. A module knows no nulls,
so its inputs take none. B rows of the batch, W columns of a tensor, n ids of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from storage.errors import InvalidInput, Unsupported
from storage.features import Column, Feature, FeatureSpec, InputSpec, column_from_numpy
from storage.features.strict_model import did_you_mean
from trainer.embedding import Embedding, EmbeddingBag
from trainer.publishing.bag_inputs import BagInputs, closed_offsets
from trainer.publishing.call_layout import batch_axis, by_rows, call_layout
from trainer.publishing.cut_plan import CutCall, CutPlan, DenseInput, Reduction, Shape, weights_read
from trainer.publishing.embedding_layers import layer_chain
from trainer.publishing.id_features import FixedCall, IdFeatures, are_ids, fixed_call
from trainer.publishing.recording import LayerCall, Recording
from trainer.publishing.tracing import Loss, Traced

_ID_DTYPES = {torch.int64: "INT64", torch.int32: "INT32", torch.bool: "BOOL"}


def plan_from_sample(
    recording: Recording, leaves: Mapping[str, Tensor], rows: int, user_inputs: Sequence[str] = ()
) -> CutPlan:
    """Plans the cut of a module that takes the sample's tensors. rows: B. user_inputs: those of the user's side.

    Raises Unsupported, naming the layer and the tensor, for a use that no feature can describe; InvalidInput for a user
    input that there is not.
    """
    plan = _Planner(recording, leaves, rows).plan()
    known = [entry.name for entry in plan.spec.inputs]
    for name in user_inputs:
        if name not in known:
            raise InvalidInput(
                f"user_inputs: the module reads no input {name!r}{did_you_mean(name, known)}; its inputs are {known}",
                field="user_inputs",
            )
    inputs = tuple(
        entry.model_copy(update={"side": "user"}) if entry.name in user_inputs else entry for entry in plan.spec.inputs
    )
    return replace(plan, spec=FeatureSpec(inputs=inputs, features=plan.spec.features)) if user_inputs else plan


class _Planner:
    """Plans one cut."""

    def __init__(self, recording: Recording, leaves: Mapping[str, Tensor], rows: int) -> None:
        self._recording, self._tracer = recording, recording.tracer
        self._leaves, self._rows = leaves, rows
        self._inputs: dict[str, InputSpec] = {}
        self._columns: dict[str, Column] = {}
        self._bags = BagInputs(self._tracer, rows, self._inputs, self._columns)
        self._taken: set[str] = set()
        self._features = IdFeatures(self._taken, recording.own_names)

    def plan(self) -> CutPlan:
        """Returns the plan of all calls."""
        # What the dense graph reads is known when all calls are: some need their ids or weights there.
        planned = [self._planned(call) for call in self._recording.calls]
        used = [name for name in self._leaves if name in self._recording.used]
        dense = [self._dense(name) for name in used if self._leaves[name].is_floating_point()]
        calls = [self._named(call, found) for call, found in zip(self._recording.calls, planned, strict=True)]
        integers = [self._integers(name) for name in used if not self._leaves[name].is_floating_point()]
        made = [Feature(name=each.group, inputs=(each.leaf,), output="dense", group=each.group) for each in dense]
        made += [Feature(name=each.group, inputs=(each.leaf,), output="integers") for each in integers]
        if not self._inputs:
            raise Unsupported(
                "no tensor of the batch reaches the outputs on a way that can be followed; ids have to stay tensors of "
                "torch: not numpy(), tolist() or item()"
            )
        spec = FeatureSpec(
            inputs=tuple(self._inputs[name] for name in self._leaves if name in self._inputs),
            features=(*made, *self._features.features),
        )
        inputs, tables = (*dense, *integers), tuple(self._features.names.sources())
        read = weights_read(self._recording, calls)
        return CutPlan(
            spec,
            tuple(calls),
            self._features.cuts,
            inputs,
            tables,
            self._columns,
            self._rows,
            read,
            frozenset(self._recording.parameters),
            self._tracer.writes_inputs,
            self._recording.packs,
        )

    def _dense(self, name: str) -> DenseInput:
        leaf = self._leaves[name]
        if leaf.dtype != torch.float32:
            raise Unsupported(
                f"input {name!r} is {leaf.dtype}; dense features are float32: convert the sample and module"
            )
        if leaf.dim() == 0 or leaf.shape[0] != self._rows:
            raise Unsupported(
                f"input {name!r} has the shape {list(leaf.shape)}, but the outputs have {self._rows} rows; the batch "
                "comes first"
            )
        self._fixed_input(name)
        self._taken.add(name)
        return DenseInput(name, name, self._inputs[name].width, tuple(leaf.shape))

    def _integers(self, name: str) -> DenseInput:
        leaf, loss = self._leaves[name], self._recording.used[name]
        if leaf.dtype not in _ID_DTYPES:
            raise Unsupported(f"input {name!r} is {leaf.dtype} and is used by {loss}; use int64, int32 or bool")
        axis = batch_axis(leaf, self._rows)
        if axis is None or name in self._bags:
            what = "holds bags of any length" if name in self._bags else f"has the shape {list(leaf.shape)}"
            raise Unsupported(
                f"input {name!r} is used by {loss} outside the embedding layers, but it {what}, and the dense graph "
                f"takes only tensors whose first size is the batch ({self._rows}). Give what is computed from it as a "
                "tensor of the batch"
            )
        self._fixed_input(name)
        group = self._features.free(f"{name}.integers")
        return DenseInput(name, group, self._inputs[name].width, tuple(leaf.shape), leaf.dtype, axis)

    def _fixed_input(self, name: str) -> None:
        """Adds a tensor with as many values in every row as an input."""
        if name in self._inputs:
            return
        leaf = self._leaves[name]
        dtype, values = _ID_DTYPES.get(leaf.dtype, "FP32"), by_rows(leaf, self._rows).contiguous()
        entry = {"name": name, "dtype": dtype, "width": max(1, values.shape[1]), "nulls": "error"}
        self._inputs[name] = InputSpec.model_validate(entry)
        self._columns[name] = column_from_numpy(dtype, values.numpy())

    def _planned(self, call: LayerCall) -> FixedCall | None:
        """Plans a call whose ids every row has as many of; None for one over bags of any length, and without ids."""
        if call.offsets_loss is not None:
            raise call.computed_ids()
        if call.values is None:
            self._check_own(call, call.computed_ids() if call.loss is not None else None)
            return None
        if layer_chain(call.layer) is not None:
            raise Unsupported(
                f"{call.where}: it has a chain, whose levels are features of a spec; publish it with `spec`, whose "
                "feature names them (fallback)"
            )
        for name in self._tracer.leaves_of(call.values):
            dtype = self._leaves[name].dtype
            if dtype not in (torch.int64, torch.int32, torch.float32):
                raise Unsupported(f"{call.where}: the ids {name!r} are {dtype}; use int64")
        if self._bags.is_jagged(call):
            return None
        traced = call.values if call.offsets is None else self._equal_bags(call)
        layout = call_layout(traced, self._tracer, self._rows)
        if layout is None:
            names = " and ".join(map(repr, self._tracer.leaves_of(traced)))
            raise Unsupported(
                f"{call.where}: its ids {list(traced.shape)} are taken from {names}, but not row by row: the outputs "
                f"have {self._rows} rows, and the ids of row i have to come from row i of the batch alone"
            )
        if not are_ids(layout):
            compared = next(each.leaf for each in layout.columns if each.leaf)
            self._check_own(
                call,
                Unsupported(
                    f"{call.where}: its ids are the result of a comparison of {compared!r}; give them as integers, as "
                    "a tensor of the batch"
                ),
            )
            self._use(traced, Loss(f"the layer {call.path!r}", call.place))
            return None
        weights = None if call.weights is None else call_layout(call.weights, self._tracer, self._rows)
        columns = [each for part in (layout, weights) if part is not None for each in part.columns]
        shapes = {self._leaves[each.leaf].shape for each in columns if each.leaf}
        found = fixed_call(call, layout, weights, len(shapes) == 1)
        loss = Loss(f"the layer {call.path!r}", call.place)
        if found.reads_ids:
            self._use(traced, loss)
        if found.reads_weights and call.weights is not None:
            self._use(call.weights, loss)
        return found

    def _check_own(self, call: LayerCall, error: Unsupported | None) -> None:
        """Raises the error, or one of its own, where the layer cannot be a weight of the dense graph."""
        if isinstance(call.layer, Embedding | EmbeddingBag):
            raise error or Unsupported(
                f"{call.where}: its ids depend on no value of the batch; rows that every request reads belong into a "
                "weight: use nn.Embedding or a parameter for them"
            )
        if error is not None:
            call.check_own_size(call.layer.weight, error)
        if call.offsets is not None:
            raise error or Unsupported(f"{call.where}: its ids are constant and have offsets; use ids (B, n)")

    def _use(self, traced: Traced, loss: Loss) -> None:
        for name in self._tracer.leaves_of(traced):
            self._tracer.used.setdefault(name, loss)

    def _equal_bags(self, call: LayerCall) -> Traced:
        """Returns the ids of bags of one length as (B, n)."""
        assert call.values is not None
        assert call.offsets is not None
        bags = closed_offsets(call, call.values.codes.numel())
        lengths = np.diff(bags)
        if len(bags) < 2 or bags[0] != 0 or bags[-1] != call.values.codes.numel() or len(set(lengths.tolist())) != 1:
            raise Unsupported(
                f"{call.where}: its bags have other lengths than one another, and are not those of a whole tensor of "
                "the batch; give ids (B, n) without offsets, or a tensor of ids and one of offsets"
            )
        return Traced(call.values.codes.reshape(len(lengths), -1))

    def _named(self, call: LayerCall, found: FixedCall | None) -> CutCall:
        if found is None:
            is_list = call.values is not None and self._bags.is_jagged(call)
            return self._bag_call(call) if is_list else self._own_call(call)
        for use in found.uses:
            for name in filter(None, (use.leaf, use.weights)):
                if name in self._bags:
                    raise Unsupported(f"{call.where}: {name!r} is used as bags and as columns; use two tensors")
                self._fixed_input(name)
            if use.weights:
                self._bags.weigh(call, use.weights, use.leaf)
        features = tuple(self._features.add(call, use, self._inputs[use.leaf].width) for use in found.uses)
        return replace(found.cut, features=features)

    def _own_call(self, call: LayerCall) -> CutCall:
        """Plans a call whose rows are a weight of the graph."""
        layer = call.layer
        if isinstance(layer, nn.EmbeddingBag):
            padding = None if layer.padding_idx is None else int(layer.padding_idx)
            return CutCall(call.path, "own", reduction=Reduction(_mode(layer), padding, call.is_weighted))
        return CutCall(call.path, "own")

    def _bag_call(self, call: LayerCall) -> CutCall:
        """Plans a call over bags of any length."""
        shape: Shape = "rows_lengths" if isinstance(call.layer, Embedding) else "pooled"
        return CutCall(call.path, shape, (self._features.add(call, self._bags.use(call), 1),))


def _mode(layer: nn.EmbeddingBag) -> Literal["sum", "mean", "max"]:
    return "sum" if layer.mode == "sum" else "mean" if layer.mode == "mean" else "max"
