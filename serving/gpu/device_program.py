"""Adapts a dense graph's program to a GPU: the same operators, whose new tensors are made there."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from storage.checkpoint.traces import graph_module
from storage.errors import Unsupported

# Operators that only the processor has, and those that compute the same anywhere.
_ONLY_FOR_CPU = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": torch.ops.aten._scaled_dot_product_attention_math.default
}


def on_device(module: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """Returns the graph with everything that names a device on `device`.

    Weights and inputs are arguments: they are where the caller puts them. Raises Unsupported for an operator that only
    a processor has.
    """
    graph = fx.Graph()
    done: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        copy = done[node] = graph.node_copy(node, done.__getitem__)
        if copy.op != "call_function":
            continue
        schema = getattr(copy.target, "_schema", None)
        name = "" if schema is None else schema.name
        if name == "aten::_assert_tensor_metadata":
            # It names the device that the graph was exported on; what it asserts held for every batch then.
            graph.erase_node(copy)
            continue
        if name in _ONLY_FOR_CPU:
            _check_attention(node)
            _replace_attention(copy)
        copy.args = tuple(_moved(value, device) for value in copy.args)
        copy.kwargs = {key: _moved(value, device) for key, value in copy.kwargs.items() if key != "pin_memory"}
        if schema is not None and "device" not in copy.kwargs and _makes_new(schema):
            copy.kwargs = {**copy.kwargs, "device": device}
    graph.lint()
    return graph_module(module, graph)


def _moved(value: Any, device: torch.device) -> Any:
    return device if isinstance(value, torch.device) else value


def _makes_new(schema: Any) -> bool:
    """Returns whether an operator takes no tensor, so that nothing but `device` says where its result is."""
    arguments = [argument for argument in schema.arguments if "Tensor" in str(argument.type)]
    return not arguments and any(argument.name == "device" for argument in schema.arguments)


def _check_attention(node: fx.Node) -> None:
    """Refuses readers of any result but the first, the attention: the second differs in kind between devices."""
    for user in node.users:
        if getattr(user.target, "__name__", "") != "getitem" or user.args[1] != 0:
            raise Unsupported("a graph that reads more of the processor's attention than its result")


def _replace_attention(node: fx.Node) -> None:
    query, key, value, *rest = node.args
    dropout, is_causal = (*rest, 0.0, False)[:2]
    kwargs = dict(node.kwargs)
    node.target = _ONLY_FOR_CPU["aten::_scaled_dot_product_flash_attention_for_cpu"]
    node.args = (query, key, value, kwargs.get("attn_mask"), kwargs.get("dropout_p", dropout))
    node.args = (*node.args, kwargs.get("is_causal", is_causal))
    node.kwargs = {"scale": kwargs["scale"]} if kwargs.get("scale") is not None else {}
