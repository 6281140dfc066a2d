"""Assembles a checked graph document into a torch.fx graph, node by node.

torch's own deserializer would do the same, and import its compiler and sympy for it: two seconds at every start.
Nothing here evaluates a text of the document: operators are resolved by the list of accepted ones, and sizes that
depend on the batch remain texts, which is enough to compare them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from storage.checkpoint.document import (
    Argument,
    Graph,
    GraphDocument,
    NamedArgument,
    Node,
    OptionalTensor,
    SymBool,
    SymBoolName,
    SymInt,
    SymName,
    TensorArgument,
    TensorName,
)
from storage.checkpoint.expressions import SYMBOL_PATTERN
from storage.checkpoint.manifest import GRAPH
from storage.checkpoint.operators import SYMBOLIC, resolve_operator
from storage.checkpoint.traces import graph_module
from storage.errors import CheckpointError

# The dtypes by their numbers in torch's export schema.
SCALAR_DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}
_MEMORY_FORMATS = {1: torch.contiguous_format, 4: torch.preserve_format}
_LAYOUTS = {7: torch.strided}
_POSITIONAL, _KEYWORD = 1, 2
_SYMBOL = re.compile(rf"\b{SYMBOL_PATTERN}\b")
_VALUE = "value"


@dataclass(frozen=True)
class TensorValue:
    """Dtype and sizes of a tensor in a graph."""

    dtype: torch.dtype
    #: Numbers, or the text of the expression that computes them.
    sizes: tuple[int | str, ...]


@dataclass(frozen=True)
class SizeValue:
    """A size, or a condition on sizes, that a graph computes."""

    #: Text of its expression, "" for a constant.
    text: str


Value = TensorValue | SizeValue


def value_of(node: fx.Node) -> Value | None:
    """Returns the document's description of a node's value; None for several values at once."""
    value: Value | None = node.meta.get(_VALUE)
    return value


def set_value(node: fx.Node, value: Value | None) -> None:
    """Sets the description of a node's value."""
    node.meta[_VALUE] = value


def symbols(text: int | str) -> set[str]:
    """Returns the symbols in the text of a size."""
    return set() if isinstance(text, int) else set(_SYMBOL.findall(text))


def assemble(document: GraphDocument, *, also: Set[str] = frozenset()) -> fx.GraphModule:
    """Assembles the graph, with its weights among its arguments. Raises CheckpointError for an inconsistent
    document. also: as for operators.check_operator.
    """
    try:
        return _Assembly(document.graph_module.graph, also).run()
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{GRAPH}: the graph cannot be assembled: {error!r}") from error


class _Assembly:
    """Assembles one graph. `done` holds its nodes by the names of their values in the document."""

    def __init__(self, given: Graph, also: Set[str]) -> None:
        self._given = given
        self._also = also
        self._graph = fx.Graph()
        self._done: dict[str, fx.Node] = {}

    def run(self) -> fx.GraphModule:
        for entry in self._given.inputs:
            self._name(entry.as_tensor.name, self._graph.placeholder(entry.as_tensor.name))
        for node in self._given.nodes:
            self._add(node)
        self._graph.output(tuple(self._done[entry.as_tensor.name] for entry in self._given.outputs))
        self._graph.lint()
        return graph_module(torch.nn.Module(), self._graph)

    def _add(self, given: Node) -> None:
        name = given.name or (_single(given.outputs[0]) if len(given.outputs) == 1 else None)
        if given.target in SYMBOLIC:
            arguments = tuple(self._argument(entry.arg) for entry in given.inputs)
            node = self._graph.create_node("call_function", _size_function(given.target), arguments, {}, name)
        else:
            target = resolve_operator(given.target, where=GRAPH, also=self._also)
            assert target is not None
            args, kwargs = self._arguments(target, given.inputs)
            node = self._graph.create_node("call_function", target, args, kwargs, name)
        if len(given.outputs) == 1 and given.outputs[0].as_tensors is None:
            only = _single(given.outputs[0])
            if only is not None:
                self._name(only, node)
        else:
            outputs = given.outputs[0].as_tensors if len(given.outputs) == 1 else given.outputs
            self._take_apart(node, outputs or [])

    def _take_apart(self, node: fx.Node, outputs: Sequence[Argument | TensorName]) -> None:
        for place, output in enumerate(outputs):
            name = output.name if isinstance(output, TensorName) else _single(output)
            if name is None and isinstance(output, Argument) and output.as_tensors is None:
                continue  # it has no value
            part = self._graph.create_node("call_function", operator.getitem, (node, place), {}, name)
            if name is not None:
                self._name(name, part)
            else:
                assert isinstance(output, Argument)
                self._take_apart(part, output.as_tensors or [])

    def _name(self, name: str, node: fx.Node) -> None:
        if name in self._done:
            raise ValueError(f"two values are named {name!r}")
        self._done[name] = node
        set_value(node, self._value(name))

    def _value(self, name: str) -> Value | None:
        tensor = self._given.tensor_values.get(name)
        if tensor is not None:
            return TensorValue(SCALAR_DTYPES[tensor.dtype], tuple(_size(size) for size in tensor.sizes))
        size = self._given.sym_int_values.get(name) or self._given.sym_bool_values.get(name)
        return None if size is None else SizeValue(_text(size))

    def _arguments(
        self, target: torch._ops.OpOverload, given: Sequence[NamedArgument]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Orders arguments as the operator's schema has them, positional ones first."""
        found = {entry.name: entry for entry in given}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for entry in target._schema.arguments:
            argument = found.pop(entry.name, None)
            if argument is None:
                if not entry.has_default_value():
                    raise ValueError(f"{target}: the argument {entry.name!r} is not there")
                continue
            by_place = not entry.has_default_value() and not entry.kwarg_only
            if argument.kind in (_POSITIONAL, _KEYWORD):
                by_place = argument.kind == _POSITIONAL
            if by_place and kwargs:
                raise ValueError(f"{target}: the argument {entry.name!r} comes by place after one by name")
            if by_place:
                args.append(self._argument(argument.arg))
            else:
                kwargs[entry.name] = self._argument(argument.arg)
        if found:
            raise ValueError(f"{target}: there is no argument {next(iter(found))!r}")
        return tuple(args), kwargs

    def _argument(self, given: Argument) -> Any:
        (kind,) = given.model_fields_set
        value = getattr(given, kind)
        if isinstance(value, list):
            return [self._element(entry) for entry in value]
        if kind == "as_scalar_type":
            return SCALAR_DTYPES[value]
        if kind == "as_memory_format":
            return _MEMORY_FORMATS[value]
        if kind == "as_layout":
            return _LAYOUTS[value]
        if kind == "as_device":
            return torch.device("cpu")
        if kind == "as_none":
            return None
        return float(value) if kind == "as_float" else self._element(value)

    def _element(self, value: Any) -> Any:
        """Converts a value, or an element of a list."""
        if isinstance(value, OptionalTensor):
            return None if value.as_tensor is None else self._done[value.as_tensor.name]
        if isinstance(value, TensorName):
            return self._done[value.name]
        if isinstance(value, TensorArgument):
            return self._done[value.as_tensor.name]
        if isinstance(value, SymName):
            return value.as_int if value.as_name is None else self._done[value.as_name]
        if isinstance(value, SymBoolName):
            return value.as_bool if value.as_name is None else self._done[value.as_name]
        return value


def _single(output: Argument) -> str | None:
    """Returns the name of an output that is one value; None for a list, and for no output."""
    if output.as_tensor is not None:
        return output.as_tensor.name
    named = output.as_sym_int or output.as_sym_bool
    return None if named is None else named.as_name


def _size_function(target: str) -> Callable[..., Any]:
    """Returns one of the functions of `SYMBOLIC`."""
    module, name = target.split(".")
    function: Callable[..., Any] = getattr(operator if module == "_operator" else torch, name)
    return function


def _size(size: SymInt) -> int | str:
    return size.as_expr.expr_str if size.as_expr is not None else size.as_int or 0


def _text(size: SymInt | SymBool) -> str:
    return "" if size.as_expr is None else size.as_expr.expr_str
