"""Computes nodes of TorchScript that give no tensor: numbers, lists, attributes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from storage.checkpoint.assembly import SCALAR_DTYPES
from storage.errors import Unsupported

_NUMBERS = {dtype: number for number, dtype in SCALAR_DTYPES.items()}


@dataclass(frozen=True)
class Owner:
    """A module of the file, and its path in it."""

    path: str
    module: Any


def _raise(_: Any, message: str, *__: Any) -> None:
    raise Unsupported(f"the TorchScript module refuses the sample: {message}")


def _list_append(_: Any, values: list[Any], value: Any) -> list[Any]:
    values.append(value)
    return values


def _size(_: Any, tensor: Any, axis: int | None = None) -> Any:
    return list(tensor.shape) if axis is None else tensor.shape[axis]


def _construct(kind: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda _, *values: kind(values)


def _pairs(_: Any, *values: Any) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))


def _function(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, *values: function(*values)


#: By kind: a function of the node and its inputs. Those of aten apply where no input is a tensor.
PYTHON: dict[str, Callable[..., Any]] = {
    "prim::ListConstruct": _construct(list),
    "prim::TupleConstruct": _construct(tuple),
    "prim::DictConstruct": _pairs,
    "prim::ListUnpack": lambda _, values: values,
    "prim::TupleUnpack": lambda _, values: values,
    "prim::TupleIndex": lambda _, values, index: values[index],
    "prim::NumToTensor": lambda _, value: value,
    "prim::Uninitialized": lambda _: None,
    "prim::RaiseException": _raise,
    "prim::unchecked_cast": lambda _, value: value,
    "prim::dtype": lambda _, value: _NUMBERS[value.dtype],
    "prim::device": lambda _, value: value.device,
    "prim::is_cuda": lambda *_: False,
    "prim::Print": lambda *_: None,
    "prim::data": lambda _, value: value,
    "prim::min": _function(min),
    "prim::max": _function(max),
    "aten::__is__": _function(operator.is_),
    "aten::__isnot__": _function(operator.is_not),
    "aten::__not__": _function(operator.not_),
    # Of whole numbers bit by bit, which for two truths is their conjunction.
    "aten::__and__": _function(operator.and_),
    "aten::__or__": _function(operator.or_),
    "aten::__xor__": _function(operator.xor),
    "aten::__contains__": _function(operator.contains),
    "aten::__getitem__": _function(operator.getitem),
    "aten::append": _list_append,
    "aten::list": _function(list),
    "aten::keys": _function(list),
    "aten::values": lambda _, value: list(value.values()),
    "aten::items": lambda _, value: list(value.items()),
    "aten::len": _function(len),
    "aten::format": lambda _, text, *values: text.format(*values),
    "aten::warn": lambda *_: None,
    **{
        f"aten::{name}": _function(getattr(operator, name))
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "neg")
    },
    "aten::floordiv": _function(operator.floordiv),
    "aten::floor_divide": _function(operator.floordiv),
    "aten::div": _function(operator.truediv),
    "aten::remainder": _function(operator.mod),
    **{f"aten::{name}": lambda _, value: value for name in ("IntImplicit", "ScalarImplicit")},
    "aten::Int": _function(torch.sym_int),
    "aten::Float": _function(torch.sym_float),
    "aten::Bool": _function(lambda value: value if isinstance(value, bool | torch.SymBool) else value != 0),
}
#: Those that read a tensor's shape.
OF_TENSORS: dict[str, Callable[..., Any]] = {
    "aten::size": _size,
    "aten::dim": lambda _, value: value.dim(),
    "aten::numel": lambda _, value: value.numel(),
    "aten::len": lambda _, value: len(value) if isinstance(value, list | tuple | dict) else value.shape[0],
    "aten::is_floating_point": lambda _, value: value.is_floating_point(),
    "aten::__is__": lambda _, left, right: left is right,
    "aten::__isnot__": lambda _, left, right: left is not right,
    "aten::__getitem__": lambda _, values, key: values[key],
    "aten::append": _list_append,
    "aten::values": lambda _, value: list(value.values()),
    "aten::items": lambda _, value: list(value.items()),
}
