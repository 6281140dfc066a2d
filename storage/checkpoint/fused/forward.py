"""Makes a callable of a graph's steps, and binds it to weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from storage._dense import BoundPlan, Plan, PlanBuilder
from storage.checkpoint.fused.lower import Lowered, lower
from storage.checkpoint.fused.passes import rewritten
from storage.checkpoint.fused.steps import Activate, Combine, Copy, Kind, Linear, Pairs, Part, Steps, Sum
from storage.checkpoint.graph_program import Forward, PackingForward
from storage.errors import InvalidInput, Unsupported


def fused_function(module: fx.GraphModule) -> PackingForward:
    """Returns a function of the graph's arguments. Thread-safe. Raises Unsupported for what no step computes."""
    lowered = lower(module)
    return FusedForward(lowered, _plan(rewritten(lowered.steps)))


class FusedForward(PackingForward):
    """A graph as a plan, for any weights."""

    def __init__(self, lowered: Lowered, plan: Plan) -> None:
        self._lowered = lowered
        self._plan = plan

    def pack(self, arguments: Sequence[Any]) -> Forward:
        """Returns the function for these weights, which it copies into the order in which the kernels read them."""
        lowered = self._lowered
        with torch.inference_mode():
            constants = lowered.constants(*[arguments[slot] for slot in lowered.weight_slots])
        found = [values.contiguous().numpy() for values in constants]
        layers = [
            (found[each.weight].T if each.is_transposed else found[each.weight], _bias(found, each.bias))
            for each in lowered.steps.layers
        ]
        indices = [found[each.constant] for each in lowered.steps.indices]
        values = [found[place] for place in lowered.value_constants]
        return _BoundForward(lowered, BoundPlan(self._plan, layers, indices, values))


class _BoundForward:
    """A plan with its weights. A call checks shapes and makes outputs; the rest runs without the GIL."""

    def __init__(self, lowered: Lowered, plan: BoundPlan) -> None:
        self._run = plan.run
        self._inputs = lowered.input_slots
        self._of_users = lowered.user_slots
        self._index = lowered.index_slot
        self._outputs = lowered.output_shapes
        values = lowered.steps.values
        self._input_widths = [value.width for value in values if value.kind is Kind.INPUT]
        self._user_widths = [value.width for value in values if value.kind is Kind.OF_USER]

    def __call__(self, *arguments: Any) -> Sequence[torch.Tensor]:
        users: list[int] = []
        count = index = 0
        if self._index is not None:
            row_users = arguments[self._index].contiguous()
            rows, index = row_users.numel(), row_users.data_ptr()
            given = [arguments[slot].contiguous() for slot in self._of_users]
            count = given[0].shape[0]
            users = _addresses(given, count, self._user_widths)
        inputs = [arguments[slot].contiguous() for slot in self._inputs]
        if self._index is None:
            rows = inputs[0].shape[0]
        outputs = [torch.empty((rows, *shape)) for shape in self._outputs]
        to = [each.data_ptr() for each in outputs]
        self._run(rows, _addresses(inputs, rows, self._input_widths), to, count, index, users)
        return outputs


def _addresses(tensors: Sequence[torch.Tensor], rows: int, widths: Sequence[int]) -> list[int]:
    """Returns where contiguous float32 tensors begin. Raises InvalidInput for one that has not as many rows."""
    for tensor, width in zip(tensors, widths, strict=True):
        if tensor.numel() != rows * width:
            raise InvalidInput(f"the graph takes {rows} rows of {width} values, got {list(tensor.shape)}")
    return [tensor.data_ptr() for tensor in tensors]


def _bias(constants: Sequence[Any], place: int | None) -> Any:
    return None if place is None else constants[place]


def _plan(steps: Steps) -> Plan:
    builder = PlanBuilder()
    for value in steps.values:
        builder.add_value(value.kind, value.width)
    for layer in steps.layers:
        builder.add_weights(layer.width, layer.out, layer.is_rounded)
    for index in steps.indices:
        builder.add_index(index.n, index.length)
    for step in steps.steps:
        to = _place(step.to)
        if isinstance(step, Linear):
            builder.linear(_place(step.source), to, step.width, step.out, step.count, step.weights, step.activation)
        elif isinstance(step, Pairs):
            builder.pairs([_place(each) for each in step.vectors], to, step.dim, step.width, step.index)
        elif isinstance(step, Copy):
            builder.copy(_place(step.source), to, step.width)
        elif isinstance(step, Activate):
            builder.activate(_place(step.source), to, step.width, step.activation)
        elif isinstance(step, Combine):
            builder.combine(_place(step.left), _place(step.right), to, step.width, step.operation)
        elif isinstance(step, Sum):
            builder.sum(_place(step.source), to, step.outer, step.middle, step.inner)
    try:
        return builder.build()
    except ValueError as error:
        raise Unsupported(str(error)) from error


def _place(part: Part) -> tuple[int, int]:
    return part.value, part.offset
