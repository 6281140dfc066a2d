"""Splits a dense graph in two halves: one that depends on the user's side alone and runs once a user, and the rest.

A request often asks for many items of one user. What the graph computes of the user alone is then the same for every
row. The first half computes it for U users; the second half takes it for each of the B rows and computes the rest.
Nodes are copied from the checked graph; nothing but an index_select is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import fx

from storage.checkpoint.assembly import SizeValue, TensorValue, Value, set_value, symbols, value_of
from storage.checkpoint.traces import graph_module

_Kind = Literal["weight", "user", "item", "size"]


@dataclass(frozen=True)
class GraphHalves:
    """The halves of a graph."""

    #: Takes the arguments `user_slots` of U rows, and returns the values that the other half needs.
    user: fx.GraphModule
    #: The arguments of the whole graph that `user` takes.
    user_slots: tuple[int, ...]
    #: Takes (rows, *results of `user`, *arguments `item_slots` of B rows), and returns the whole graph's outputs. rows
    #: is (B,) int64, each row's user.
    item: fx.GraphModule
    #: The arguments of the whole graph that `item` takes.
    item_slots: tuple[int, ...]

    @property
    def item_arguments(self) -> tuple[int | None, ...]:
        """The argument of the whole graph for each of `item`'s; None for rows and results of `user`."""
        holders = sum(node.op == "placeholder" for node in self.item.graph.nodes)
        return (*[None] * (holders - len(self.item_slots)), *self.item_slots)


def split_graph(module: fx.GraphModule, user: Sequence[int], item: Sequence[int]) -> GraphHalves | None:
    """Splits a graph; returns None where that is not possible, such as with a second dynamic size.

    user, item: places of the arguments that are inputs of either side; the others are weights.
    """
    nodes = list(module.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    users = {placeholders[place] for place in user}
    items = {placeholders[place] for place in item}
    batch = _batch_symbol([*users, *items])
    if batch is None or not users:
        return None
    kept_back: set[fx.Node] = set()
    while True:
        kinds = _kinds(nodes, users, items, kept_back, batch)
        if kinds is None:
            return None
        border = _border(nodes, kinds)
        if not border:
            return None
        # A value that crosses the border is taken row by row, so its rows must be the batch.
        wrong = [node for node in border if not _is_by_rows(node, batch)]
        if not wrong:
            break
        if any(node.op == "placeholder" for node in wrong):
            return None
        kept_back.update(wrong)
    slots = {node: place for place, node in enumerate(placeholders)}
    user_module, user_slots = _user_half(module, kinds, border, slots)
    item_module, item_slots = _item_half(module, nodes, kinds, border, slots, batch)
    return GraphHalves(user_module, user_slots, item_module, item_slots)


def _batch_symbol(inputs: Sequence[fx.Node]) -> str | None:
    """Returns the text of the batch's size; None when the inputs do not have exactly one symbol, as their first
    size.
    """
    found: set[str] = set()
    for node in inputs:
        value = value_of(node)
        if not isinstance(value, TensorValue) or not value.sizes or not isinstance(value.sizes[0], str):
            return None
        if any(isinstance(size, str) for size in value.sizes[1:]):
            return None
        found.add(value.sizes[0])
    return found.pop() if len(found) == 1 else None


def _kinds(
    nodes: Sequence[fx.Node], users: set[fx.Node], items: set[fx.Node], kept_back: set[fx.Node], batch: str
) -> dict[fx.Node, _Kind] | None:
    """Returns what each node depends on. A size is computed again in each half, from that half's own batch."""
    kinds: dict[fx.Node, _Kind] = {}
    for node in nodes:
        if node.op == "placeholder":
            kinds[node] = "user" if node in users else "item" if node in items else "weight"
        elif node.op == "get_attr":
            kinds[node] = "weight"
        elif node.op == "call_function":
            before = {kinds[each] for each in node.all_input_nodes}
            value = value_of(node)
            if isinstance(value, SizeValue):
                if symbols(value.text) - symbols(batch) or ("size" not in before and value.text != batch):
                    return None
                kinds[node] = "size"
            elif node in kept_back or "item" in before:
                kinds[node] = "item"
            elif "user" in before:
                kinds[node] = "user"
            else:
                # It is made of sizes alone, such as zeros(batch, 4), so it has as many rows as there are.
                kinds[node] = "item" if "size" in before else "weight"
        elif node.op != "output":
            return None
    return kinds


def _border(nodes: Sequence[fx.Node], kinds: dict[fx.Node, _Kind]) -> list[fx.Node]:
    """Returns the user's nodes that the other half or the outputs need."""
    return [
        node
        for node in nodes
        if kinds.get(node) == "user" and any(each.op == "output" or kinds.get(each) == "item" for each in node.users)
    ]


def _is_by_rows(node: fx.Node, batch: str) -> bool:
    value = value_of(node)
    if not isinstance(value, TensorValue) or not value.sizes or value.sizes[0] != batch:
        return False
    return not any(isinstance(size, str) for size in value.sizes[1:])


class _Copy:
    """Copies nodes into one half, as they are requested. `size_of` is the tensor whose first size is its batch."""

    def __init__(self, kinds: dict[fx.Node, _Kind]) -> None:
        self.graph = fx.Graph()
        self.done: dict[fx.Node, fx.Node] = {}
        self.size_of: fx.Node | None = None
        self._kinds = kinds

    def copy(self, node: fx.Node) -> fx.Node:
        """Copies the node, with everything before it that is not copied yet."""
        # There is no recursion: graphs are deep.
        todo = [node]
        while todo:
            last = todo[-1]
            if last in self.done:
                todo.pop()
                continue
            is_base = self._kinds.get(last) == "size" and all(
                self._kinds[each] != "size" for each in last.all_input_nodes
            )
            if is_base:
                assert self.size_of is not None
                self.done[last] = self.graph.call_function(torch.ops.aten.sym_size.int, (self.size_of, 0))
                continue
            missing = [each for each in last.all_input_nodes if each not in self.done]
            if missing:
                todo.extend(missing)
                continue
            self.done[last] = self.graph.node_copy(last, self.done.__getitem__)
        return self.done[node]

    def placeholder(self, name: str, value: Value | None) -> fx.Node:
        """Adds an argument."""
        node = self.graph.placeholder(name)
        set_value(node, value)
        return node

    def module(self, root: fx.GraphModule) -> fx.GraphModule:
        self.graph.lint()
        return graph_module(root, self.graph)


def _user_half(
    root: fx.GraphModule,
    kinds: dict[fx.Node, _Kind],
    border: Sequence[fx.Node],
    slots: dict[fx.Node, int],
) -> tuple[fx.GraphModule, tuple[int, ...]]:
    used = _used_placeholders(border, kinds, slots)
    half = _Copy(kinds)
    for node in used:
        half.done[node] = half.placeholder(node.name, value_of(node))
        if kinds[node] == "user" and half.size_of is None:
            half.size_of = half.done[node]
    half.graph.output(tuple(half.copy(node) for node in border))
    return half.module(root), tuple(slots[node] for node in used)


def _item_half(
    root: fx.GraphModule,
    nodes: Sequence[fx.Node],
    kinds: dict[fx.Node, _Kind],
    border: Sequence[fx.Node],
    slots: dict[fx.Node, int],
    batch: str,
) -> tuple[fx.GraphModule, tuple[int, ...]]:
    (output,) = (node for node in nodes if node.op == "output")
    used = _used_placeholders(output.all_input_nodes, kinds, slots, stop=border)
    half = _Copy(kinds)
    half.size_of = rows = half.placeholder("rows", TensorValue(torch.int64, (batch,)))
    given = [half.placeholder(f"user_{place}", value_of(node)) for place, node in enumerate(border)]
    for node in used:
        half.done[node] = half.placeholder(node.name, value_of(node))
    for node, value in zip(border, given, strict=True):
        half.done[node] = half.graph.call_function(torch.ops.aten.index_select.default, (value, 0, rows))
        set_value(half.done[node], value_of(node))
    for node in output.all_input_nodes:
        half.copy(node)
    half.graph.output(fx.map_arg(output.args[0], half.done.__getitem__))
    return half.module(root), tuple(slots[node] for node in used)


def _used_placeholders(
    wanted: Sequence[fx.Node],
    kinds: dict[fx.Node, _Kind],
    slots: dict[fx.Node, int],
    stop: Sequence[fx.Node] = (),
) -> list[fx.Node]:
    """Returns the placeholders that `wanted` is computed from, in the graph's order.

    Sizes need none: each half has its own.
    """
    found: list[fx.Node] = []
    seen = set(stop)
    todo = list(wanted)
    while todo:
        node = todo.pop()
        if node in seen or kinds.get(node) == "size":
            continue
        seen.add(node)
        if node.op == "placeholder":
            found.append(node)
        todo.extend(node.all_input_nodes)
    return sorted(found, key=slots.__getitem__)
