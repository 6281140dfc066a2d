"""A dense graph whose matrix products are computed in bfloat16 or float16, everything between them in float32.

Inputs of a product are rounded, its result is widened again. Weights that only products read are rounded once, when the
graph gets them; others, each time.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

PRODUCTS = frozenset({"aten::addmm", "aten::baddbmm", "aten::bmm", "aten::linear", "aten::matmul", "aten::mm"})
# What `precision` of a model may say, and torch's name for it.
LOWERED = {"bf16": torch.bfloat16, "fp16": torch.float16}


def lower_products(
    module: fx.GraphModule, weights: Iterable[int], dtype: torch.dtype
) -> tuple[fx.GraphModule, frozenset[int]]:
    """The graph in lower precision, and which of its arguments it wants rounded.

    weights: places of the arguments that are weights. dtype: of the products.
    """
    graph = fx.Graph()
    done: dict[fx.Node, fx.Node] = {}
    rounded: dict[fx.Node, fx.Node] = {}
    places = set(weights)
    given: set[int] = set()
    place = -1
    for node in module.graph.nodes:
        if node.op == "placeholder":
            place += 1
            done[node] = graph.placeholder(node.name)
            done[node].meta = dict(node.meta)
            if place in places and _is_wide(node) and all(map(_is_product, node.users)):
                given.add(place)
                rounded[node] = done[node]
        elif _is_product(node):
            for each in node.all_input_nodes:
                if _is_wide(each) and each not in rounded:
                    rounded[each] = _cast(graph, done[each], dtype)
            copy = graph.node_copy(node, lambda each: rounded.get(each, done[each]))
            done[node] = _cast(graph, copy, torch.float32) if _is_wide(node) else copy
        else:
            done[node] = graph.node_copy(node, done.__getitem__)
    graph.lint()
    return fx.GraphModule(module, graph), frozenset(given)


def _cast(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    cast = graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": dtype})
    cast.meta = dict(node.meta)  # its shape, which is what splitting a graph asks for
    return cast


def _is_product(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.name in PRODUCTS and _is_wide(node)


def _is_wide(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32
