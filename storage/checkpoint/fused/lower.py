"""Lowers a graph to steps: selecting and arranging becomes layouts, the rest one step an operator."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from storage.checkpoint.assembly import SizeValue, TensorValue, value_of
from storage.checkpoint.fused.building import Building, Tensor
from storage.checkpoint.fused.constants import batch_nodes
from storage.checkpoint.fused.layout import Layout, Stretch
from storage.checkpoint.fused.rules import RULES, Square
from storage.checkpoint.fused.steps import Kind, Steps
from storage.errors import Unsupported


@dataclass(frozen=True)
class Lowered:
    """A graph as steps."""

    steps: Steps
    #: Computes the constants of the steps from the weights.
    constants: fx.GraphModule
    #: The graph's arguments that are weights, for `constants`.
    weight_slots: tuple[int, ...]
    #: The graph's arguments that are inputs, one row for each row of the batch.
    input_slots: tuple[int, ...]
    #: The graph's arguments that have one row for each user.
    user_slots: tuple[int, ...]
    #: The graph's argument that has each row's user; None without.
    index_slot: int | None
    #: Constants that are values, in the order of these.
    value_constants: tuple[int, ...]
    #: Sizes of each output's row.
    output_shapes: tuple[tuple[int, ...], ...]


def lower(module: fx.GraphModule) -> Lowered:
    """Lowers a graph. Raises Unsupported naming what no step computes."""
    return _GraphLowering(module.graph).run()


class _GraphLowering:
    """Lowers one graph. `_done` holds what became of its nodes that depend on the batch."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        of_batch = batch_nodes(graph)
        self.building = Building(graph, of_batch)
        self._batch = _batch_size([node for node in graph.nodes if node.op == "placeholder" and node in of_batch])
        self._done: dict[fx.Node, Any] = {}
        # The values of inputs by their slots, and the slots of inputs that may be the users of rows.
        self._inputs: dict[int, int] = {}
        self._integers: dict[fx.Node, int] = {}
        self._index: fx.Node | None = None

    def run(self) -> Lowered:
        slot = -1
        outputs: list[tuple[int, ...]] = []
        for node in self._graph.nodes:
            if node.op == "placeholder":
                slot += 1
                if node in self.building.of_batch:
                    self._placeholder(node, slot)
            elif node.op == "call_function":
                if node in self.building.of_batch:
                    self._call(node)
            elif node.op == "output":
                outputs = [self._output(each) for each in node.args[0]]
            else:
                raise Unsupported(f"a graph with a node of kind {node.op!r}")
        if not self._inputs:
            raise Unsupported("a graph without inputs of floats")
        return self._lowered(outputs)

    def _lowered(self, outputs: Sequence[tuple[int, ...]]) -> Lowered:
        building = self.building
        kinds = {slot: building.kind(value) for slot, value in self._inputs.items()}
        constants = building.value_constants
        return Lowered(
            steps=building.steps(),
            constants=building.constants.module(),
            weight_slots=tuple(building.constants.slots),
            input_slots=tuple(slot for slot, kind in kinds.items() if kind is Kind.INPUT),
            user_slots=tuple(slot for slot, kind in kinds.items() if kind is Kind.OF_USER),
            index_slot=None if self._index is None else self._integers[self._index],
            value_constants=tuple(sorted(constants, key=constants.__getitem__)),
            output_shapes=tuple(outputs),
        )

    def _placeholder(self, node: fx.Node, slot: int) -> None:
        shape, described = self.shape(node), value_of(node)
        assert isinstance(described, TensorValue)
        if described.dtype == torch.int64 and not shape:
            self._integers[node] = slot
            return
        if described.dtype != torch.float32:
            raise Unsupported(f"an input of {described.dtype}")
        self._inputs[slot] = value = self.building.value(Kind.INPUT, math.prod(shape))
        self._done[node] = Tensor(Layout(shape, (Stretch(value, 0, math.prod(shape)),)), torch.float32)

    def _call(self, node: fx.Node) -> None:
        if isinstance(value_of(node), SizeValue):
            return  # shapes are taken from the description of tensors
        target = node.target
        if target is operator.getitem:
            whole, place = node.args
            self._done[node] = self.found(whole)[place]
            return
        if not isinstance(target, torch._ops.OpOverload):
            raise Unsupported(f"the function {getattr(target, '__name__', target)}")
        name = target._schema.name.removeprefix("aten::")
        if name.startswith(("sym_", "_assert")):
            return  # what it asserts of sizes was proven when the graph was exported
        rule = RULES.get(name)
        if rule is None:
            raise Unsupported(f"the operator {name}")
        self._done[node] = rule(self, node, _named(node))

    def _output(self, node: fx.Node) -> tuple[int, ...]:
        tensor = self.tensor(node)
        if tensor.dtype != torch.float32:
            raise Unsupported(f"an output of {tensor.dtype}")
        self.building.copy(tensor.layout, self.building.value(Kind.OUTPUT, tensor.layout.width))
        return tensor.layout.shape

    def found(self, node: Any) -> Any:
        """Returns what became of a node that depends on the batch; None for others."""
        return self._done.get(node)

    def tensor(self, node: Any) -> Tensor:
        """Returns a node that became a tensor. Raises Unsupported."""
        found = self._done.get(node)
        if isinstance(found, Square):
            raise Unsupported("all products of pairs of vectors, rather than some of them")
        if not isinstance(found, Tensor):
            raise Unsupported(f"the value {getattr(node, 'name', node)!s}")
        return found

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """Returns the sizes of a node's row. Raises Unsupported where its first size is not the batch."""
        value = value_of(node)
        if not isinstance(value, TensorValue) or not value.sizes or value.sizes[0] != self._batch:
            raise Unsupported(f"the value {node.name!r} does not have the batch as its first size")
        sizes = tuple(size for size in value.sizes[1:] if isinstance(size, int))
        if len(sizes) + 1 != len(value.sizes):
            raise Unsupported("a second size that is not fixed")
        return sizes

    def of_users(self, node: fx.Node, index: fx.Node) -> Tensor:
        """Returns the rows of an input that an index of users takes. Raises Unsupported.

        Nothing else may read the input, and there is one index.
        """
        found = self._done.get(node)
        if node.op != "placeholder" or len(node.users) != 1 or not isinstance(found, Tensor):
            raise Unsupported("a gather of rows")
        if index not in self._integers or self._index not in (None, index):
            raise Unsupported("a gather of rows by several indices")
        self._index = index
        self.building.set_kind(found.layout.stretches[0].value, Kind.OF_USER)
        return found


def _batch_size(inputs: Sequence[fx.Node]) -> int | str | None:
    """Returns the text of the batch's size, which is the first one of all inputs; None without inputs."""
    sizes = [value.sizes[0] for node in inputs if isinstance(value := value_of(node), TensorValue)]
    return sizes[0] if sizes else None


def _named(node: fx.Node) -> dict[str, Any]:
    """Returns an operator's arguments by their names, those not given with their defaults."""
    schema = node.target._schema  # type: ignore[union-attr]
    found: dict[str, Any] = {}
    for place, argument in enumerate(schema.arguments):
        if place < len(node.args):
            found[argument.name] = node.args[place]
        elif argument.name in node.kwargs:
            found[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            found[argument.name] = argument.default_value
    return found
