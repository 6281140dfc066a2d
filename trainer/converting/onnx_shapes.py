"""Computes operators of ONNX that move, cut and make values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from storage.errors import Unsupported
from trainer.converting.onnx_call import Call, operator, sizes

_TO_END = 1 << 31
# The numbers of onnx.TensorProto's types.
_TYPES = {1: "float32", 10: "float32", 16: "float32", 11: "float64", 6: "int32", 7: "int64", 9: "bool", 3: "int8",
          2: "uint8", 5: "int16"}  # fmt: skip
_TORCH = {name: getattr(torch, name) for name in set(_TYPES.values())}


@operator("Shape")
def _shape(call: Call) -> np.ndarray:
    shape = call.values[0].shape  # type: ignore[union-attr]
    return sizes(list(shape)[slice(call.get("start", 0), call.get("end"))])


@operator("Size")
def _size(call: Call) -> np.ndarray:
    return sizes([math.prod(call.tensor(0).shape)]).reshape(())


@operator("Cast")
def _cast(call: Call) -> Any:
    return _as_type(call, call.get("to"))


@operator("CastLike")
def _cast_like(call: Call) -> Any:
    return call.tensor(0).to(call.tensor(1).dtype)


def _as_type(call: Call, number: int) -> Any:
    name = _TYPES.get(number)
    if name is None:
        raise Unsupported(f"{call.where}: Cast to the type {number} of ONNX; numbers are computed with")
    value = call.values[0]
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.astype(name)
    if isinstance(value, np.ndarray) and name in ("int64", "int32"):
        return value
    return call.tensor(0).to(_TORCH[name])


@operator("ConstantOfShape", host=[0])
def _constant_of_shape(call: Call) -> Any:
    shape = list(call.host(0, "shape"))
    value = np.asarray(call.get("value", np.zeros(1, np.float32))).reshape(-1)[0]
    if all(isinstance(size, int | np.integer) for size in shape) and math.prod(shape) <= 1024:
        return np.full([int(size) for size in shape], value)
    return torch.full([_plain(size) for size in shape], value.item(), dtype=_TORCH[str(value.dtype)])


@operator("Range", host=[0, 1, 2])
def _range(call: Call) -> Any:
    start, stop, step = (call.host(position, "bounds").reshape(-1)[0] for position in range(3))
    if all(isinstance(each, int | np.number) for each in (start, stop, step)):
        return np.arange(start, stop, step, dtype=call.host(0, "bounds").dtype)
    return torch.arange(_plain(start), _plain(stop), _plain(step))


@operator("Concat")
def _concat(call: Call) -> Any:
    axis = call.get("axis")
    if call.all_host():
        return np.concatenate(list(call.values), axis)
    return torch.cat(call.tensors(), axis)


@operator("Reshape", host=[1])
def _reshape(call: Call) -> Any:
    wanted, value = call.host(1, "shape"), call.values[0]
    x = value if isinstance(value, np.ndarray) else call.tensor(0)
    keep_zero = not call.get("allowzero", 0)
    shape = [x.shape[i] if keep_zero and _is(size, 0) else _plain(size) for i, size in enumerate(wanted)]
    return x.reshape(shape)


@operator("Flatten")
def _flatten(call: Call) -> Tensor:
    x, axis = call.tensor(0), call.get("axis", 1)
    if axis == 1:
        return torch.flatten(x, 1) if x.dim() > 1 else x.unsqueeze(1)
    before = math.prod(x.shape[: axis if axis >= 0 else x.dim() + axis])
    return x.reshape(before, -1)


@operator("Transpose")
def _transpose(call: Call) -> Tensor:
    x = call.tensor(0)
    return x.permute(call.get("perm") or list(reversed(range(x.dim()))))


@operator("Unsqueeze", host=[1])
def _unsqueeze(call: Call) -> Any:
    axes, value = call.ints(1, "axes", "axes") or [], call.values[0]
    rank = len(value.shape) + len(axes)  # type: ignore[union-attr]
    places = sorted(axis % rank for axis in axes)
    if isinstance(value, np.ndarray):
        return np.expand_dims(value, tuple(places))
    x = call.tensor(0)
    for axis in places:
        x = x.unsqueeze(axis)
    return x


@operator("Squeeze", host=[1])
def _squeeze(call: Call) -> Any:
    axes, value = call.ints(1, "axes", "axes"), call.values[0]
    if isinstance(value, np.ndarray):
        return np.squeeze(value, None if axes is None else tuple(axes))
    x = call.tensor(0)
    if axes is None:
        # Never the batch, which is 1 for a single row, and more in the first run.
        axes = call.kept.setdefault("axes", [axis for axis in range(x.dim()) if _is(x.shape[axis], 1)])
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = x.squeeze(axis)
    return x


@operator("Expand", host=[1])
def _expand(call: Call) -> Any:
    wanted, x = [_plain(size) for size in call.host(1, "shape")], call.tensor(0)
    rank = max(len(wanted), x.dim())
    shape, own = [1] * (rank - len(wanted)) + wanted, [1] * (rank - x.dim()) + list(x.shape)
    return x.expand([own[i] if _is(size, 1) else size for i, size in enumerate(shape)])


@operator("Tile", host=[1])
def _tile(call: Call) -> Tensor:
    return call.tensor(0).repeat([_plain(each) for each in call.host(1, "repeats")])


@operator("Slice", host=[1, 2, 3, 4])
def _slice(call: Call) -> Any:
    value = call.values[0]
    starts, ends = call.host(1, "starts").reshape(-1), call.host(2, "ends").reshape(-1)
    axes = call.ints(3, "axes", "axes") or list(range(len(starts)))
    steps = call.ints(4, "steps", "steps") or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        begin, stop = _plain(start), _plain(end)
        stop = None if isinstance(stop, int) and stop >= _TO_END - 1 else stop
        if isinstance(value, np.ndarray):
            stop = None if isinstance(stop, int) and stop <= -_TO_END else stop
            index = [slice(None)] * value.ndim
            index[axis] = slice(begin, stop, step)
            value = value[tuple(index)]
        elif step < 1:
            if step != -1 or begin != -1 or not isinstance(stop, int) or stop > -_TO_END:
                raise Unsupported(f"{call.where}: Slice with the step {step}")
            value = torch.flip(value, [axis])  # type: ignore[arg-type]
        else:
            value = torch.ops.aten.slice.Tensor(value, axis, begin, stop, step)
    return value


@operator("Split", host=[1])
def _split(call: Call) -> Any:
    x, axis, parts = call.tensor(0), call.get("axis", 0), call.ints(1, "split", "sizes")
    if parts is None:
        count, total = call.get("num_outputs", call.outputs), int(x.shape[axis])
        each = -(-total // count)
        parts = [min(each, total - each * i) for i in range(count)]
    return tuple(torch.split(x, parts, axis))


@operator("Gather")
def _gather(call: Call) -> Any:
    data, indices, axis = call.values[0], call.values[1], call.get("axis", 0)
    if isinstance(indices, np.ndarray) and indices.dtype != object:
        if isinstance(data, np.ndarray):
            return np.asarray(np.take(data, indices, axis), data.dtype)
        x = call.tensor(0)
        if indices.ndim == 0:
            return x.select(axis, int(indices))
        if indices.ndim == 1 and len(indices) and np.all(np.diff(indices) == 1) and indices[0] >= 0:
            return x.narrow(axis, int(indices[0]), len(indices))
    x, places = call.tensor(0), call.tensor(1)
    axis %= x.dim()
    if not (isinstance(indices, np.ndarray) and indices.dtype != object and (indices >= 0).all()):
        places = torch.where(places < 0, places + x.shape[axis], places)
    picked = x.index_select(axis, places.reshape(-1))
    return picked.reshape([*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]])


@operator("GatherElements")
def _gather_elements(call: Call) -> Tensor:
    x, places, axis = call.tensor(0), call.tensor(1), call.get("axis", 0)
    return torch.gather(x, axis, torch.where(places < 0, places + x.shape[axis], places))


@operator("OneHot", host=[1])
def _one_hot(call: Call) -> Tensor:
    places, depth, values, axis = (
        call.tensor(0),
        int(call.host(1, "depth").item()),
        call.tensor(2),
        call.get("axis", -1),
    )
    places = torch.where(places < 0, places + depth, places).to(torch.int64)
    hit = places.unsqueeze(-1) == torch.arange(depth)
    result = torch.where(hit, values[1], values[0])
    return result if axis in (-1, places.dim()) else result.movedim(-1, axis)


@operator("Trilu", host=[1])
def _trilu(call: Call) -> Tensor:
    diagonal = int(call.host(1, "k").item()) if call.has(1) else 0
    return (torch.triu if call.get("upper", 1) else torch.tril)(call.tensor(0), diagonal)


@operator("Pad", host=[1, 2, 3])
def _pad(call: Call) -> Tensor:
    x, pads = call.tensor(0), call.ints(1, "pads", "pads") or []
    if call.get("mode", "constant") != "constant":
        raise Unsupported(f"{call.where}: Pad with the mode {call.get('mode')!r}")
    axes = [axis % x.dim() for axis in (call.ints(3, "axes", "axes") or range(len(pads) // 2))]
    before, after = dict(zip(axes, pads, strict=False)), dict(zip(axes, pads[len(axes) :], strict=True))
    flat = [amount for axis in reversed(range(x.dim())) for amount in (before.get(axis, 0), after.get(axis, 0))]
    return functional.pad(x, flat, value=float(call.host(2, "value").item()) if call.has(2) else 0.0)


def _plain(size: Any) -> Any:
    return int(size) if isinstance(size, np.integer) else size


def _is(size: Any, number: int) -> bool:
    """Returns whether a size is a number; one that differs from batch to batch is none."""
    return isinstance(size, int | np.integer) and int(size) == number
