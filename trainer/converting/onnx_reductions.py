"""Computes reductions and scans of ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from storage.errors import Unsupported
from trainer.converting.onnx_call import Call, operator


@operator("CumSum", host=[1])
def _cumsum(call: Call) -> Tensor:
    axis = int(call.host(1, "axis").item())
    if call.get("exclusive", 0) or call.get("reverse", 0):
        raise Unsupported(f"{call.where}: CumSum that is exclusive or reversed")
    x = call.tensor(0)
    return torch.cumsum(x, axis, dtype=x.dtype)


def _axes(call: Call) -> list[int] | None:
    return call.ints(1, "axes", "axes") or None


def _reduce(function: Callable[[Tensor, list[int], bool], Tensor]) -> Callable[[Call], Any]:
    def run(call: Call) -> Any:
        x, axes, keep = call.values[0], _axes(call), bool(call.get("keepdims", 1))
        if axes is None and call.get("noop_with_empty_axes", 0):
            return x
        if isinstance(x, np.ndarray) and call.operator == "ReduceProd":
            return np.asarray(np.prod(x, axis=None if axes is None else tuple(axes), keepdims=keep), x.dtype)
        given = call.tensor(0)
        reduced = function(given, list(range(given.dim())) if axes is None else axes, keep)
        return reduced if reduced.dtype == given.dtype else reduced.to(given.dtype)

    return run


def _prod(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if x.is_floating_point():
        return x.mean(axes, keepdim=keep)
    count = math.prod(x.shape[axis] for axis in axes)
    return torch.div(x.sum(axes, keepdim=keep), count, rounding_mode="trunc")


_REDUCE: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdim=keep),
    "ReduceMean": _mean,
    "ReduceMax": lambda x, axes, keep: x.amax(axes, keepdim=keep),
    "ReduceMin": lambda x, axes, keep: x.amin(axes, keepdim=keep),
    "ReduceProd": _prod,
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keepdim=keep),
    "ReduceL2": lambda x, axes, keep: (x * x).sum(axes, keepdim=keep).sqrt(),
    "ReduceSumSquare": lambda x, axes, keep: (x * x).sum(axes, keepdim=keep),
    "ReduceLogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep),
    "ReduceLogSum": lambda x, axes, keep: x.sum(axes, keepdim=keep).log(),
}
for _name, _reduction in _REDUCE.items():
    operator(_name, host=[1])(_reduce(_reduction))


@operator("ArgMax", "ArgMin")
def _arg(call: Call) -> Tensor:
    if call.get("select_last_index", 0):
        raise Unsupported(f"{call.where}: select_last_index")
    function = torch.argmax if call.operator == "ArgMax" else torch.argmin
    return function(call.tensor(0), call.get("axis", 0), keepdim=bool(call.get("keepdims", 1)))


@operator("TopK", host=[1])
def _topk(call: Call) -> Any:
    count = int(call.host(1, "K").item())
    return tuple(torch.topk(call.tensor(0), count, call.get("axis", -1), bool(call.get("largest", 1))))
