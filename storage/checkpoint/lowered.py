"""Lowers a dense graph: computes its matrix products in bfloat16 or float16, and everything else in float32.

Inputs of a product are rounded, and its result is widened again. Weights that only products read are rounded once, when
the graph gets them; others are rounded each time. An operator between two products that only selects or moves values (a
relu, a reshape) works on the rounded ones, which gives the same bits without widening and rounding again.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from storage.checkpoint.assembly import TensorValue, value_of
from storage.checkpoint.traces import graph_module

PRODUCTS = frozenset({"aten::addmm", "aten::baddbmm", "aten::bmm", "aten::linear", "aten::matmul", "aten::mm"})
# Operators whose results are values of their inputs, or zero: rounded before or after, they are the same.
EXACT = frozenset(
    f"aten::{name}"
    for name in (
        *("relu", "cat", "stack", "clone", "alias", "contiguous", "expand", "flatten", "permute", "reshape", "select"),
        *("slice", "squeeze", "t", "transpose", "unflatten", "unsqueeze", "view", "_unsafe_view", "index_select"),
    )
)
# Values of a model's `precision`, and torch's names for them.
LOWERED = {"bf16": torch.bfloat16, "fp16": torch.float16}

_CAST = torch.ops.aten._to_copy.default


def lower_products(
    module: fx.GraphModule, weights: Iterable[int], dtype: torch.dtype
) -> tuple[fx.GraphModule, frozenset[int]]:
    """Returns the graph in lower precision, and which of its arguments it takes rounded.

    weights: places of the arguments that are weights. dtype: that of the products.
    """
    return _Lowering(module, set(weights), dtype).run()


class _Lowering:
    """Lowers one graph. `done` holds copies of its nodes, `rounded` nodes in `dtype` by the node that they round."""

    def __init__(self, module: fx.GraphModule, weights: set[int], dtype: torch.dtype) -> None:
        self._module = module
        self._weights = weights
        self._dtype = dtype
        self._graph = fx.Graph()
        self._done: dict[fx.Node, fx.Node] = {}
        self._rounded: dict[fx.Node, fx.Node] = {}

    def run(self) -> tuple[fx.GraphModule, frozenset[int]]:
        graph, done = self._graph, self._done
        given: set[int] = set()
        place = -1
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                place += 1
                done[node] = graph.placeholder(node.name)
                done[node].meta = dict(node.meta)
                if place in self._weights and _is_wide(node) and all(map(_is_product, node.users)):
                    given.add(place)
                    self._rounded[node] = done[node]
            elif _is_product(node):
                for each in node.all_input_nodes:
                    if _is_wide(each):
                        self._round(each)
                copy = graph.node_copy(node, lambda each: self._rounded.get(each, done[each]))
                self._rounded[node] = copy
                done[node] = _cast(graph, copy, torch.float32)
            else:
                done[node] = graph.node_copy(node, done.__getitem__)
        for node in reversed(list(graph.nodes)):
            if not node.users and node.op == "call_function" and (node.target is _CAST or _is_exact(node)):
                graph.erase_node(node)  # all users took the rounded one
        graph.lint()
        return graph_module(self._module, graph), frozenset(given)

    def _round(self, node: fx.Node) -> fx.Node:
        """Returns the rounded values of a node."""
        found = self._rounded.get(node)
        if found is None:
            if self._comes_rounded(node):
                found = self._graph.node_copy(
                    node, lambda each: self._round(each) if _is_wide(each) else self._done[each]
                )
            else:
                found = _cast(self._graph, self._done[node], self._dtype)
            self._rounded[node] = found
        return found

    def _comes_rounded(self, node: fx.Node) -> bool:
        """Returns whether the node only selects and moves values that exist in `dtype`."""
        return node in self._rounded or (
            _is_exact(node) and all(self._comes_rounded(each) for each in node.all_input_nodes if _is_wide(each))
        )


def _cast(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    cast = graph.call_function(_CAST, (node,), {"dtype": dtype})
    cast.meta = dict(node.meta)  # its shape, which splitting a graph needs
    return cast


def _is_product(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.name in PRODUCTS and _is_wide(node)


def _is_exact(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.name in EXACT


def _is_wide(node: fx.Node) -> bool:
    value = value_of(node)
    return isinstance(value, TensorValue) and value.dtype == torch.float32
