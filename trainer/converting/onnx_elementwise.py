"""Computes operators of ONNX that go element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from storage.errors import Unsupported
from trainer.converting.onnx_call import Call, operator


def _unary(torch_function: Callable[[Tensor], Tensor]) -> Callable[[Call], Tensor]:
    return lambda call: torch_function(call.tensor(0))


_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs, "Acos": torch.acos, "Asin": torch.asin, "Atan": torch.atan, "Ceil": torch.ceil, "Cos": torch.cos,
    "Cosh": torch.cosh, "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor, "HardSwish": functional.hardswish,
    "IsNaN": torch.isnan, "Log": torch.log, "Mish": functional.mish, "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal, "Relu": torch.relu, "Round": torch.round, "Sigmoid": torch.sigmoid,
    "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh, "Softplus": functional.softplus,
    "Softsign": functional.softsign, "Sqrt": torch.sqrt, "Tan": torch.tan, "Tanh": torch.tanh,
}  # fmt: skip
for _name, _function in _UNARY.items():
    operator(_name)(_unary(_function))


@operator("Identity")
def _identity(call: Call) -> Any:
    return call.values[0]


@operator("Dropout", host=[1, 2])
def _dropout(call: Call) -> Any:
    return call.values[0] if call.outputs == 1 else (call.values[0], torch.ones_like(call.tensor(0), dtype=torch.bool))


@operator("Neg")
def _neg(call: Call) -> Any:
    return -call.values[0] if call.all_host() else torch.neg(call.tensor(0))  # type: ignore[operator]


def _binary(on_arrays: Callable[..., Any], on_tensors: Callable[..., Any]) -> Callable[[Call], Any]:
    def run(call: Call) -> Any:
        if call.all_host():
            return np.asarray(on_arrays(*call.values))
        result = call.tensor(0)
        for position in range(1, len(call.values)):
            result = on_tensors(result, call.tensor(position))
        return result

    return run


def _divided(left: Any, right: Any) -> Any:
    kinds = left.dtype.kind + right.dtype.kind
    if set(kinds) <= set("iu"):
        # Towards zero, not down.
        return left // right + ((left % right != 0) & ((left < 0) != (right < 0)))
    return left // right if set(kinds) <= set("iuO") else left / right  # sizes are not negative


def _div(left: Tensor, right: Tensor) -> Tensor:
    return torch.div(left, right) if left.is_floating_point() else torch.div(left, right, rounding_mode="trunc")


_BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "Add": (np.add, torch.add), "Sub": (np.subtract, torch.sub), "Mul": (np.multiply, torch.mul),
    "Div": (_divided, _div), "Equal": (np.equal, torch.eq), "Greater": (np.greater, torch.gt),
    "GreaterOrEqual": (np.greater_equal, torch.ge), "Less": (np.less, torch.lt),
    "LessOrEqual": (np.less_equal, torch.le), "And": (np.logical_and, torch.logical_and),
    "Or": (np.logical_or, torch.logical_or), "Xor": (np.logical_xor, torch.logical_xor),
}  # fmt: skip
for _name, (_arrays, _tensors) in _BINARY.items():
    operator(_name)(_binary(_arrays, _tensors))


def _variadic(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Call], Tensor]:
    def run(call: Call) -> Tensor:
        result, *rest = call.tensors()
        for each in rest:
            result = function(result, each)
        return result

    return run


for _name, _function2 in (("Sum", torch.add), ("Max", torch.maximum), ("Min", torch.minimum)):
    operator(_name)(_variadic(_function2))


@operator("Mean")
def _mean(call: Call) -> Tensor:
    return _variadic(torch.add)(call) / len(call.values)


@operator("Pow")
def _pow(call: Call) -> Tensor:
    base, exponent = call.tensor(0), call.values[1]
    # A plain number where it is known: x ** 2 is then exactly x * x.
    if isinstance(exponent, np.ndarray) and exponent.size == 1 and exponent.dtype != object:
        number = float(exponent.reshape(-1)[0])
        if not base.is_floating_point():
            whole = number.is_integer() and number >= 0
            raised: Tensor = torch.pow(base, int(number)) if whole else torch.pow(base.double(), number)
        else:
            raised = torch.pow(base, number)
    elif base.is_floating_point():
        raised = torch.pow(base, call.tensor(1))
    else:
        raised = torch.pow(base.double(), call.tensor(1).double())
    result: Tensor = raised.to(base.dtype)
    return result


@operator("Mod")
def _mod(call: Call) -> Any:
    if call.all_host():
        left, right = call.values
        is_truncated = call.get("fmod", 0) and left.dtype != object  # type: ignore[union-attr]
        return np.asarray((np.fmod if is_truncated else np.mod)(left, right))  # type: ignore[arg-type]
    return (torch.fmod if call.get("fmod", 0) else torch.remainder)(call.tensor(0), call.tensor(1))


@operator("Where")
def _where(call: Call) -> Any:
    if call.all_host():
        condition, yes, no = call.values
        return np.where(condition.astype(bool), yes, no)  # type: ignore[union-attr, arg-type]
    return torch.where(call.tensor(0), call.tensor(1), call.tensor(2))


@operator("Clip", host=[1, 2])
def _clip(call: Call) -> Tensor:
    low, high = (call.host(position, "bounds").item() if call.has(position) else None for position in (1, 2))
    return torch.clamp(call.tensor(0), low, high)


@operator("LeakyRelu")
def _leaky_relu(call: Call) -> Tensor:
    return functional.leaky_relu(call.tensor(0), call.get("alpha", 0.01))


@operator("Elu")
def _elu(call: Call) -> Tensor:
    return functional.elu(call.tensor(0), call.get("alpha", 1.0))


@operator("Celu")
def _celu(call: Call) -> Tensor:
    return functional.celu(call.tensor(0), call.get("alpha", 1.0))


@operator("Selu")
def _selu(call: Call) -> Tensor:
    alpha, gamma = call.get("alpha", 1.67326319217681884765625), call.get("gamma", 1.05070102214813232421875)
    x = call.tensor(0)
    scaled: Tensor = gamma * (torch.clamp_min(x, 0) + torch.clamp_max(alpha * torch.expm1(x), 0))
    return scaled


@operator("HardSigmoid")
def _hard_sigmoid(call: Call) -> Tensor:
    return torch.clamp(call.tensor(0) * call.get("alpha", 0.2) + call.get("beta", 0.5), 0, 1)


@operator("Gelu")
def _gelu(call: Call) -> Tensor:
    return functional.gelu(call.tensor(0), approximate=call.get("approximate", "none"))


@operator("PRelu")
def _prelu(call: Call) -> Tensor:
    x = call.tensor(0)
    return torch.clamp_min(x, 0) + call.tensor(1) * torch.clamp_max(x, 0)


@operator("IsInf")
def _isinf(call: Call) -> Tensor:
    if not call.get("detect_negative", 1) or not call.get("detect_positive", 1):
        raise Unsupported(f"{call.where}: IsInf of one sign")
    return torch.isinf(call.tensor(0))
