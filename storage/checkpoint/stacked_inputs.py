"""Rewrites a dense graph so that inputs that it stacks come stacked: lookups write them where the graph wants them.

Where a `stack` or a `cat` takes pooled features, one behind the other, the graph gets one input in their place. What is
computed stays the same, operator by operator: nodes are copied from the checked graph, and what was stacked beside the
features is joined to them by `cat`. A feature that is used elsewhere too stays an input of its own: taking it out of a
stacked one costs more than stacking it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from storage.checkpoint.assembly import TensorValue, set_value, value_of
from storage.checkpoint.traces import graph_module

_STACK, _CAT = torch.ops.aten.stack.default, torch.ops.aten.cat.default
_SIZE = torch.ops.aten.sym_size.int


@dataclass(frozen=True)
class StackedInputs:
    """A graph some of whose inputs are several of another graph's."""

    module: fx.GraphModule
    #: For each input, the numbers of the other graph's inputs: one that is taken as it is, or those that are stacked,
    #: (B, D) each, behind each other in a row.
    members: tuple[tuple[int, ...], ...]
    #: The shape of each input without the batch.
    shapes: tuple[tuple[int, ...], ...]
    #: For each argument, the other graph's, if it is a weight; None for inputs.
    weights: tuple[int | None, ...]
    #: The argument of each input.
    slots: tuple[int, ...]


@dataclass(frozen=True)
class _Run:
    """Features that stand behind each other in what a node joins."""

    nodes: tuple[fx.Node, ...]
    value: TensorValue


def stack_inputs(module: fx.GraphModule, slots: Sequence[int], pooled: Collection[int]) -> StackedInputs | None:
    """Returns the graph with stacked inputs; None where it stacks none.

    slots: the argument of each input. pooled: numbers of the inputs that lookups write.
    """
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    free = {placeholders[slots[number]] for number in pooled if _is_rows(placeholders[slots[number]])}
    joins = {node: _runs(node, free) for node in module.graph.nodes if _joins_rows(node)}
    runs = [part for parts in joins.values() for part in parts if isinstance(part, _Run)]
    if not runs:
        return None
    numbers = {placeholders[slot]: number for number, slot in enumerate(slots)}
    return _Rewriting(module, placeholders, joins, runs).result(numbers)


def _is_rows(node: fx.Node) -> bool:
    value = value_of(node)
    return (
        isinstance(value, TensorValue)
        and value.dtype == torch.float32
        and len(value.sizes) == 2
        and isinstance(value.sizes[0], str)
        and isinstance(value.sizes[1], int)
    )


def _joins_rows(node: fx.Node) -> bool:
    """Returns whether a node puts rows behind each other: the values of each row keep their order."""
    if node.op != "call_function" or node.target not in (_STACK, _CAT):
        return False
    parts = node.args[0]
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    last = -2 if node.target is _STACK else -1
    return dim in (1, last) and isinstance(parts, list | tuple) and all(map(_is_rows, _nodes(parts)))


def _nodes(parts: Sequence[object]) -> list[fx.Node]:
    return [part for part in parts if isinstance(part, fx.Node)]


def _runs(node: fx.Node, free: set[fx.Node]) -> list[_Run | fx.Node]:
    """Returns what a node joins, neighbours that are `free` and that it alone needs as runs."""
    parts = _nodes(node.args[0])  # type: ignore[arg-type]
    found: list[_Run | fx.Node] = []
    for is_own, group in itertools.groupby(
        parts,
        lambda part: part in free and parts.count(part) == 1 and all(map(_needs_size, part.users.keys() - {node})),
    ):
        members = tuple(group)
        if is_own and len(members) > 1:
            found.append(_Run(members, _joined(node, members)))
        else:
            found.extend(members)
    return found


def _needs_size(user: fx.Node) -> bool:
    """Returns whether a node needs nothing but the size of the batch."""
    return bool(user.target is _SIZE and user.args[1] == 0)


def _joined(node: fx.Node, run: Sequence[fx.Node]) -> TensorValue:
    """Returns the description of what a node makes of a run."""
    values = [value for each in run if isinstance(value := value_of(each), TensorValue)]
    batch, width = values[0].sizes
    widths = [int(value.sizes[1]) for value in values]
    sizes = (batch, len(run), width) if node.target is _STACK else (batch, sum(widths))
    return TensorValue(torch.float32, sizes)


class _Rewriting:
    """Copies one graph. `done` holds the copies of its nodes; who needs the size of an input of a run gets the run."""

    def __init__(
        self,
        module: fx.GraphModule,
        placeholders: Sequence[fx.Node],
        joins: dict[fx.Node, list[_Run | fx.Node]],
        runs: Sequence[_Run],
    ) -> None:
        self._module = module
        self._placeholders = placeholders
        self._joins = joins
        self._runs = runs
        self._graph = fx.Graph()
        self._done: dict[fx.Node, fx.Node] = {}
        self._stacked: dict[_Run, fx.Node] = {}
        self._inside = {node for run in runs for node in run.nodes}

    def result(self, numbers: dict[fx.Node, int]) -> StackedInputs:
        """numbers: of the graph's inputs, by placeholder; the other placeholders are weights."""
        kept = [node for node in self._placeholders if node not in self._inside]
        for node in kept:
            self._done[node] = self._graph.node_copy(node)
        for number, run in enumerate(self._runs):
            self._stacked[run] = self._graph.placeholder(f"stacked_{number}")
            set_value(self._stacked[run], run.value)
            self._done.update(dict.fromkeys(run.nodes, self._stacked[run]))
        for node in self._module.graph.nodes:
            if node.op != "placeholder":
                self._copy(node)
        self._graph.lint()
        inputs: list[tuple[int, tuple[int, ...], fx.Node]] = [
            (slot, (numbers[node],), node) for slot, node in enumerate(kept) if node in numbers
        ]
        inputs += [
            (slot, tuple(numbers[each] for each in run.nodes), self._stacked[run])
            for slot, run in enumerate(self._runs, len(kept))
        ]
        return StackedInputs(
            graph_module(self._module, self._graph),
            tuple(members for _, members, _ in inputs),
            tuple(_shape(node) for _, _, node in inputs),
            (
                *[None if node in numbers else self._placeholders.index(node) for node in kept],
                *[None] * len(self._runs),
            ),
            tuple(slot for slot, _, _ in inputs),
        )

    def _copy(self, node: fx.Node) -> None:
        parts = self._joins.get(node, [])
        if any(isinstance(part, _Run) for part in parts):
            self._done[node] = self._join(node, parts)
        else:
            self._done[node] = self._graph.node_copy(node, self._done.__getitem__)

    def _join(self, node: fx.Node, parts: Sequence[_Run | fx.Node]) -> fx.Node:
        made = [self._stacked[part] if isinstance(part, _Run) else self._beside(node, part) for part in parts]
        if len(made) == 1:
            return made[0]
        joined = self._graph.call_function(_CAT, (made, 1))
        joined.meta = dict(node.meta)
        return joined

    def _beside(self, join: fx.Node, part: fx.Node) -> fx.Node:
        """Returns a value as `cat` takes it beside a run."""
        own = self._done[part]
        if join.target is not _STACK:
            return own
        raised = self._graph.call_function(torch.ops.aten.unsqueeze.default, (own, 1))
        value = value_of(part)
        assert isinstance(value, TensorValue)
        set_value(raised, TensorValue(value.dtype, (value.sizes[0], 1, value.sizes[1])))
        return raised


def _shape(node: fx.Node) -> tuple[int, ...]:
    """Returns the shape of an input without the batch."""
    value = value_of(node)
    assert isinstance(value, TensorValue)
    return tuple(int(size) for size in value.sizes[1:])
