"""Steps of the row optimizers in torch, for rows in the memory of a GPU. N rows, D dim, S optimizer values.

Each operation is one of storage/native/training/optimizer_body.h, in its order and rounded by itself, so a row gets the
same bits wherever it is stepped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

_PARTS = 16


class _Numbers:
    """The numbers of a step, as the native code rounds them. t: steps with this one."""

    def __init__(self, options: Mapping[str, Any], t: int) -> None:
        self.given = {name: _rounded(value) for name, value in options.items()}
        beta1, beta2 = self["beta1"], self["beta2"]
        left1, left2 = 1.0 - math.pow(beta1, t), 1.0 - math.pow(beta2, t)
        self.keep1, self.keep2 = _rounded(1.0 - beta1), _rounded(1.0 - beta2)
        self.corrected_lr = _rounded(self["lr"] / left1)
        self.corrected_1 = _rounded(1.0 / left1)
        self.corrected_root = _rounded(1.0 / math.sqrt(left2))
        self.shrink = _rounded(1.0 - self["lr"] * self["weight_decay"])
        self.period = int(options.get("period", 0))

    def __getitem__(self, name: str) -> float:
        return self.given.get(name, 0.0)


_Step = Callable[[_Numbers, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def stepped_rows(rule: str, values: Tensor, grads: Tensor, options: Mapping[str, Any], t: int) -> Tensor:
    """Returns rows with their optimizer values, (N, D + S), after the step of a rule.

    values: (N, D + S) before it. grads: (N, D). options: as `SparseOptimizer.step` gives them to the native code. t:
    steps of the table, with this one.
    """
    numbers = _Numbers(options, t)
    dim = grads.shape[1]
    rows, slots = values[:, :dim], values[:, dim:]
    rows, slots = _STEPS[rule](numbers, rows, slots, _ready(numbers, rows, grads, rule))
    return torch.cat((rows, slots), dim=1)


def _rounded(value: float) -> float:
    return float(np.float32(value))


def _as(value: float, like: Tensor) -> Tensor:
    # torch multiplies by the reciprocal where a number stands on either side of a division, which rounds twice.
    return torch.full((), value, dtype=like.dtype, device=like.device)


def _root(values: Tensor) -> Tensor:
    # torch's root of float32 is not rounded right on every processor; that of float64 is, after rounding to float32.
    return torch.sqrt(values.double()).to(values.dtype)


def row_squares(values: Tensor) -> Tensor:
    """Returns the sum of squares of each row, (N, 1), in the order of the native code."""
    dim = values.shape[1]
    padded = torch.nn.functional.pad(values, (0, -dim % _PARTS))
    parts = torch.zeros((len(values), _PARTS), dtype=values.dtype, device=values.device)
    for piece in torch.split(padded, _PARTS, dim=1):
        parts = parts + piece * piece
    width = _PARTS // 2
    while width:
        parts = parts[:, :width] + parts[:, width : 2 * width]
        width //= 2
    return parts


def _ready(numbers: _Numbers, rows: Tensor, grads: Tensor, rule: str) -> Tensor:
    """Scales and clips gradients, and adds the weight decay."""
    scale = numbers.given.get("scale", 1.0)
    if scale != 1.0:
        grads = grads * scale
    clip = numbers["row_clip"]
    if clip > 0.0:
        norm = _root(row_squares(grads))
        grads = torch.where(norm > clip, grads * (_as(clip, norm) / norm), grads)
    if numbers["weight_decay"] != 0.0 and rule not in ("adamw", "lamb", "ftrl"):
        grads = grads + rows * numbers["weight_decay"]
    return grads


def _sgd(numbers: _Numbers, rows: Tensor, slots: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    return rows - grads * numbers["lr"], slots


def _momentum(numbers: _Numbers, rows: Tensor, slots: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    moments = slots * numbers["momentum"] + grads
    return rows - moments * numbers["lr"], moments


def _adagrad(numbers: _Numbers, rows: Tensor, slots: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    totals = slots + grads * grads
    return rows - grads * numbers["lr"] / (_root(totals) + numbers["eps"]), totals


def _rowwise_adagrad(numbers: _Numbers, rows: Tensor, slots: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    totals = slots + row_squares(grads) / _as(grads.shape[1], grads)
    return rows - grads * numbers["lr"] / (_root(totals) + numbers["eps"]), totals


def _adagrad_decay(numbers: _Numbers, rows: Tensor, slots: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    dim = grads.shape[1]
    totals, last = slots[:, :dim], slots[:, dim:]
    left = (numbers.period - last.to(torch.int64)).clamp(min=0)
    is_late = left > 0
    factor, power = torch.ones_like(last), np.float32(numbers["decay"])
    for _ in range(numbers.period.bit_length()):
        factor = torch.where(left % 2 == 1, factor * float(power), factor)
        power, left = np.float32(power * power), left // 2
    decayed = totals * factor
    initial = numbers["initial"]
    decayed = torch.where(decayed < initial, torch.full_like(decayed, initial), decayed)
    rows, totals = _adagrad(numbers, rows, torch.where(is_late, decayed, totals), grads)
    last = torch.where(is_late, torch.full_like(last, float(numbers.period)), last)
    return rows, torch.cat((totals, last), dim=1)


def _moments(numbers: _Numbers, slots: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the moving averages m and v of Adam, (N, D) each."""
    dim = grads.shape[1]
    first = slots[:, :dim] * numbers["beta1"] + grads * numbers.keep1
    return first, slots[:, dim:] * numbers["beta2"] + grads * grads * numbers.keep2


def _adam(numbers: _Numbers, rows: Tensor, slots: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    first, second = _moments(numbers, slots, grads)
    roots = _root(second) * numbers.corrected_root + numbers["eps"]
    return rows - first * numbers.corrected_lr / roots, torch.cat((first, second), dim=1)


def _adamw(numbers: _Numbers, rows: Tensor, slots: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    return _adam(numbers, rows * numbers.shrink if numbers["weight_decay"] != 0.0 else rows, slots, grads)


def _rowwise_adam(numbers: _Numbers, rows: Tensor, slots: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    dim = grads.shape[1]
    second = slots[:, dim:] * numbers["beta2"] + row_squares(grads) / _as(dim, grads) * numbers.keep2
    first = slots[:, :dim] * numbers["beta1"] + grads * numbers.keep1
    roots = _root(second) * numbers.corrected_root + numbers["eps"]
    return rows - first * numbers.corrected_lr / roots, torch.cat((first, second), dim=1)


def _lamb(numbers: _Numbers, rows: Tensor, slots: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    first, second = _moments(numbers, slots, grads)
    roots = _root(second) * numbers.corrected_root + numbers["eps"]
    steps = first * numbers.corrected_1 / roots + rows * numbers["weight_decay"]
    weights, updates = _root(row_squares(rows)), _root(row_squares(steps))
    trust = torch.where((weights > 0.0) & (updates > 0.0), weights / updates, torch.ones_like(weights))
    return rows - steps * (trust * numbers["lr"]), torch.cat((first, second), dim=1)


def _ftrl(numbers: _Numbers, rows: Tensor, slots: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    dim = grads.shape[1]
    before, linear = slots[:, :dim], slots[:, dim:]
    lr, l1 = numbers["lr"], numbers["l1"]
    totals = before + grads * grads
    roots = _root(totals)
    linear = linear + (grads - (roots - _root(before)) / _as(lr, rows) * rows)
    pulled = torch.where(linear < 0.0, linear + l1, linear - l1)
    moved = -pulled / ((roots + numbers["beta"]) / _as(lr, rows) + numbers["l2"])
    return torch.where(linear.abs() <= l1, torch.zeros_like(moved), moved), torch.cat((totals, linear), dim=1)


_STEPS: dict[str, _Step] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "adagrad": _adagrad,
    "rowwise_adagrad": _rowwise_adagrad,
    "adagrad_decay": _adagrad_decay,
    "adam": _adam,
    "adamw": _adamw,
    "rowwise_adam": _rowwise_adam,
    "lamb": _lamb,
    "ftrl": _ftrl,
}
