"""Converts a dense graph to TorchScript, which torch's interpreter runs in one call, without the GIL between operators.

The operators are exactly those of the checked graph; sizes become integers, and weights remain arguments.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from storage.errors import Unsupported

_DTYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bool: 11,
    torch.bfloat16: 15,
}
_MEMORY_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2}
# Functions on sizes, and those that return a bool rather than an int.
_SIZES = {
    "add": "aten::add",
    "sub": "aten::sub",
    "mul": "aten::mul",
    "floordiv": "aten::floordiv",
    "mod": "aten::remainder",
    "neg": "aten::neg",
    "sym_max": "prim::max",
    "sym_min": "prim::min",
}
_TESTS = {"eq": "aten::eq", "ne": "aten::ne", "lt": "aten::lt", "le": "aten::le", "gt": "aten::gt", "ge": "aten::ge"}
# Text that can stand between quotes as it is.
_PLAIN = re.compile(r"[A-Za-z0-9_,. >-]*")
_TYPES = {
    "TensorType": "Tensor",
    "IntType": "int",
    "SymIntType": "int",
    "FloatType": "float",
    "BoolType": "bool",
    "NumberType": "Scalar",
}


def script_function(module: fx.GraphModule) -> Callable[..., Any]:
    """Returns a function of the module's placeholders, in their order, that returns a tuple. Thread-safe.

    Raises Unsupported for an operator or value that has no counterpart.
    """
    text = _Writer().write(module)
    try:
        graph = torch._C.parse_ir(text)
        function: Callable[..., Any] = torch._C._create_function_from_graph("forward", graph)
    except RuntimeError as error:
        raise Unsupported(f"TorchScript does not take the graph: {error}") from error
    # What torch calls instead while another thread of the process exports a model; without it, such calls fail.
    function._torchdynamo_inline = module.forward  # type: ignore[attr-defined]
    return function


class _Writer:
    """Writes the text of one graph."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._constants: dict[tuple[str, str], str] = {}
        self._numbers = itertools.count()
        # The name of a node's value, or one name for each output of an operator that has several.
        self._values: dict[fx.Node, str | tuple[str, ...]] = {}

    def write(self, module: fx.GraphModule) -> str:
        parameters: list[str] = []
        for node in module.graph.nodes:
            if node.op == "placeholder":
                name = self._new()
                self._values[node] = name
                parameters.append(f"{name} : Tensor")
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                outputs = [self._value(entry, "Tensor") for entry in node.args[0]]
            else:
                raise Unsupported(f"a graph with a node of kind {node.op!r}")
        result = self._new()
        types = ", ".join(["Tensor"] * len(outputs))
        self._lines.append(f"{result} : ({types}) = prim::TupleConstruct({', '.join(outputs)})")
        lines = "\n".join(f"  {line}" for line in self._lines)
        return f"graph({', '.join(parameters)}):\n{lines}\n  return ({result})\n"

    def _call(self, node: fx.Node) -> None:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            self._size_call(node, getattr(target, "__name__", str(target)))
            return
        schema = target._schema
        name = schema.name
        if name == "aten::sym_size":
            name = "aten::size"
        elif name == "aten::sym_numel":
            name = "aten::numel"
        elif name.startswith(("aten::sym_", "aten::_assert", "aten::sym_constrain")):
            # Its assertion about sizes was proven when the graph was exported, for every batch.
            if node.users:
                raise Unsupported(f"the operator {name}")
            return
        words = []
        for place, argument in enumerate(schema.arguments):
            if place < len(node.args):
                value: Any = node.args[place]
            elif argument.name in node.kwargs:
                value = node.kwargs[argument.name]
            elif argument.has_default_value():
                value = argument.default_value
            else:
                raise Unsupported(f"the operator {name} without its argument {argument.name!r}")
            words.append(self._value(value, _type_text(argument.type)))
        results = tuple(self._new() for _ in schema.returns)
        declared = ", ".join(
            f"{result} : {_type_text(entry.type)}" for result, entry in zip(results, schema.returns, strict=True)
        )
        self._lines.append(f"{declared} = {name}({', '.join(words)})")
        self._values[node] = results[0] if len(results) == 1 else results

    def _size_call(self, node: fx.Node, name: str) -> None:
        if name == "getitem":
            whole, index = node.args
            assert isinstance(whole, fx.Node)
            found = self._values[whole]
            if isinstance(found, tuple):
                assert isinstance(index, int)
                self._values[node] = found[index]
                return
            result = self._new()
            self._lines.append(f"{result} : Tensor = aten::__getitem__({found}, {self._value(index, 'int')})")
        elif name in _SIZES or name in _TESTS:
            words = [self._value(value, "int") for value in node.args]
            result = self._new()
            kind = "int" if name in _SIZES else "bool"
            self._lines.append(f"{result} : {kind} = {(_SIZES | _TESTS)[name]}({', '.join(words)})")
        else:
            raise Unsupported(f"the function {name} on sizes")
        self._values[node] = result

    def _value(self, value: Any, kind: str) -> str:
        """Returns the name of a value. kind: type that the operator takes in its place."""
        if isinstance(value, fx.Node):
            name = self._values[value]
            if isinstance(name, tuple):
                raise Unsupported(f"{value.name}: several outputs in one place")
            return name
        if isinstance(value, list | tuple):
            of = kind.removesuffix("?").removesuffix("[]")
            words = [self._value(entry, of) for entry in value]
            name = self._new()
            self._lines.append(f"{name} : {of}[] = prim::ListConstruct({', '.join(words)})")
            return name
        if isinstance(value, float) and not math.isfinite(value):
            # The text of a graph has no literal for this value.
            result = self._new()
            self._lines.append(f"{result} : float = aten::Float({self._constant('str', _quoted(str(value)))})")
            return result
        return self._constant(*_constant(value))

    def _constant(self, kind: str, text: str) -> str:
        name = self._constants.get((kind, text))
        if name is None:
            name = self._constants[kind, text] = self._new()
            attribute = f"[value={text}]" if text else ""
            self._lines.append(f"{name} : {kind} = prim::Constant{attribute}()")
        return name

    def _new(self) -> str:
        return f"%{next(self._numbers)}"


def _constant(value: Any) -> tuple[str, str]:
    """Returns the type of a constant and its text."""
    if value is None:
        return "NoneType", ""
    if isinstance(value, bool):
        return "bool", str(int(value))
    if isinstance(value, int):
        return "int", str(value)
    if isinstance(value, float):
        text = repr(value)
        return "float", text if "." in text or "e" in text else text + "."
    if isinstance(value, torch.dtype) and value in _DTYPES:
        return "int", str(_DTYPES[value])
    if isinstance(value, torch.memory_format) and value in _MEMORY_FORMATS:
        return "int", str(_MEMORY_FORMATS[value])
    if isinstance(value, torch.device) and value.type == "cpu":
        return "Device", '"cpu"'
    if value is torch.strided:
        return "int", "0"
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return "str", _quoted(value)
    raise Unsupported(f"the constant {str(value)[:60]!r}")


def _quoted(text: str) -> str:
    return f'"{text}"'


def _type_text(kind: Any) -> str:
    """Returns the type of an operator's argument or result as written in the text of a graph."""
    name = kind.kind()
    if name == "OptionalType":
        return _type_text(kind.getElementType()) + "?"
    if name == "ListType":
        return _type_text(kind.getElementType()) + "[]"
    return _TYPES.get(name, "int")
