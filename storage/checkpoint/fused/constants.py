"""Collects what a graph computes of weights alone: once for each set of weights, not once for each batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import fx

from storage.checkpoint.assembly import TensorValue, value_of
from storage.checkpoint.traces import graph_module

_CAST = torch.ops.aten._to_copy.default
_EXPAND = torch.ops.aten.expand.default
_RESHAPE = torch.ops.aten.reshape.default
_FULL = torch.ops.aten.full.default


def batch_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Returns the nodes that depend on the batch: inputs whose first size is no number, and what is made of them."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            value = value_of(node)
            if isinstance(value, TensorValue) and value.sizes and isinstance(value.sizes[0], str):
                found.add(node)
        elif any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


class Constants:
    """Collects tensors that a graph's steps need, each computed from the weights by the graph's own operators."""

    def __init__(self, graph: fx.Graph, of_batch: set[fx.Node]) -> None:
        self._graph = fx.Graph()
        self._done: dict[fx.Node, fx.Node] = {}
        self._outputs: list[fx.Node] = []
        self._places: dict[object, int] = {}
        #: The arguments of the whole graph that `module` takes.
        self.slots: list[int] = []
        holders = [node for node in graph.nodes if node.op == "placeholder"]
        for slot, node in enumerate(holders):
            if node not in of_batch:
                self.slots.append(slot)
                self._done[node] = self._graph.placeholder(node.name)

    def matrix(self, node: fx.Node) -> int:
        """Adds a matrix or a vector as float32; returns its place among the constants."""
        return self._add(
            (node,), lambda: self._graph.call_function(_CAST, (self._copy(node),), {"dtype": torch.float32})
        )

    def integers(self, node: fx.Node) -> int:
        """Adds a tensor of integers, flattened; returns its place."""
        return self._add((node, "flat"), lambda: self._graph.call_function(_RESHAPE, (self._copy(node), [-1])))

    def pair_index(self, rows: fx.Node, columns: fx.Node, n: int) -> int:
        """Adds rows * n + columns, the index of products of pairs of n vectors, flattened; returns its place."""

        def make() -> fx.Node:
            scaled = self._graph.call_function(torch.ops.aten.mul.Tensor, (self._copy(rows), n))
            index = self._graph.call_function(torch.ops.aten.add.Tensor, (scaled, self._copy(columns)))
            return self._graph.call_function(_RESHAPE, (index, [-1]))

        return self._add((rows, columns, n), make)

    def filled(self, shape: Sequence[int], node: fx.Node) -> int:
        """Adds a tensor broadcast to the shape of a row, flattened, as float32; returns its place."""

        def make() -> fx.Node:
            wide = self._graph.call_function(_EXPAND, (self._copy(node), [1, *shape]))
            flat = self._graph.call_function(_RESHAPE, (wide, [-1]))
            return self._graph.call_function(_CAST, (flat,), {"dtype": torch.float32})

        return self._add((node, *shape), make)

    def number(self, shape: Sequence[int], value: float) -> int:
        """Adds a number repeated for each float of a row; returns its place."""
        size = math.prod(shape)
        return self._add(
            (value, size), lambda: self._graph.call_function(_FULL, ([size], value), {"dtype": torch.float32})
        )

    def module(self) -> fx.GraphModule:
        """Returns the graph that computes the constants, in the order of their places."""
        self._graph.output(tuple(self._outputs))
        self._graph.lint()
        return graph_module(torch.nn.Module(), self._graph)

    def _add(self, key: object, make: Callable[[], fx.Node]) -> int:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self._outputs)
            self._outputs.append(make())
        return place

    def _copy(self, node: fx.Node) -> fx.Node:
        """Copies a node, with everything before it that is not copied yet."""
        todo = [node]
        while todo:
            last = todo[-1]
            missing = [each for each in last.all_input_nodes if each not in self._done]
            if last in self._done:
                todo.pop()
            elif missing:
                todo.extend(missing)
            else:
                self._done[last] = self._graph.node_copy(last, self._done.__getitem__)
        return self._done[node]
