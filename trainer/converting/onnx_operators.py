"""Computes the operators of ONNX by torch.

A value is a tensor, or a numpy array where it is known without a request: a constant, and what is computed from
constants and sizes. An array of sizes may hold torch.SymInt, so that a batch stays dynamic while torch exports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from storage.errors import Unsupported

Value = Tensor | np.ndarray


class Constants(Protocol):
    """Gives the tensor of a constant by its name, or None."""

    def __call__(self, name: str) -> Tensor | None: ...


@dataclass(frozen=True)
class Call:
    """One node with the values of its inputs; None for an input that is left out."""

    where: str
    names: Sequence[str]
    values: Sequence[Value | None]
    attributes: Mapping[str, Any]
    outputs: int
    opset: int
    constants: Constants

    def has(self, position: int) -> bool:
        """Returns whether an input is given."""
        return position < len(self.values) and self.values[position] is not None

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an attribute."""
        return self.attributes.get(name, default)

    def tensor(self, position: int) -> Tensor:
        """Returns an input as a tensor."""
        value = self.values[position]
        if isinstance(value, Tensor):
            return value
        if value is None:
            raise Unsupported(f"{self.where}: input {position} is missing")
        known = self.constants(self.names[position])
        return tensor_of(value) if known is None else known

    def tensors(self) -> list[Tensor]:
        """Returns all inputs as tensors."""
        return [self.tensor(position) for position in range(len(self.values))]

    def optional(self, position: int) -> Tensor | None:
        """Returns an input as a tensor, None where it is left out."""
        return self.tensor(position) if self.has(position) else None

    def host(self, position: int, what: str) -> np.ndarray:
        """Returns an input that has to be known without a request. Raises Unsupported where it is not."""
        value = self.values[position]
        if isinstance(value, np.ndarray):
            return value
        raise Unsupported(f"{self.where}: its {what} depend on values of a request; a published graph has fixed ones")

    def ints(self, position: int, attribute: str, what: str) -> list[int] | None:
        """Returns whole numbers that newer opsets take as an input and older ones as an attribute."""
        if self.has(position):
            return [int(each) for each in self.host(position, what).reshape(-1)]
        found = self.get(attribute)
        return None if found is None else [int(each) for each in found]

    def all_host(self) -> bool:
        """Returns whether every input is known without a request."""
        return all(isinstance(value, np.ndarray) for value in self.values)


@dataclass(frozen=True)
class Operator:
    """run: computes a node's outputs, or the only one. host: inputs that are read without a request."""

    run: Callable[[Call], Any]
    host: frozenset[int] = field(default_factory=frozenset)


OPERATORS: dict[str, Operator] = {}


def operator(*names: str, host: Sequence[int] = ()) -> Callable[[Callable[[Call], Any]], Callable[[Call], Any]]:
    """Registers a function for operators of ONNX."""

    def register(run: Callable[[Call], Any]) -> Callable[[Call], Any]:
        OPERATORS.update({name: Operator(run, frozenset(host)) for name in names})
        return run

    return register


def tensor_of(value: np.ndarray) -> Tensor:
    """Returns an array as a tensor, also one that holds sizes."""
    if value.dtype != object:
        return torch.tensor(value.tolist(), dtype=torch.from_numpy(np.zeros(0, value.dtype)).dtype).reshape(value.shape)
    parts = [torch.full((), each, dtype=torch.int64) for each in value.reshape(-1)]
    return torch.stack(parts).reshape(value.shape)


def sizes(value: Sequence[Any]) -> np.ndarray:
    """Returns sizes as an array: of int64 if all are numbers."""
    plain = all(isinstance(each, int) for each in value)
    return np.array(list(value), np.int64 if plain else object)


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


@operator("MatMul")
def _matmul(call: Call) -> Tensor:
    return torch.matmul(call.tensor(0), call.tensor(1))


@operator("Gemm")
def _gemm(call: Call) -> Tensor:
    left, right = call.tensor(0), call.tensor(1)
    left = left.t() if call.get("transA", 0) else left
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    bias = call.optional(2)
    if alpha == 1.0 and beta == 1.0 and call.get("transB", 0) and (bias is None or bias.dim() == 1):
        return functional.linear(left, right, bias)
    product = torch.matmul(left, right.t() if call.get("transB", 0) else right)
    product = product if alpha == 1.0 else product * alpha
    return product if bias is None else product + (bias if beta == 1.0 else bias * beta)


@operator("Einsum")
def _einsum(call: Call) -> Tensor:
    result: Tensor = torch.einsum(call.get("equation"), *call.tensors())
    return result


@operator("Softmax", "LogSoftmax")
def _softmax(call: Call) -> Tensor:
    # The registry gives one function to both names; the node's own says which.
    function = functional.log_softmax if call.where.startswith("LogSoftmax") else functional.softmax
    return function(call.tensor(0), dim=call.get("axis", -1))


@operator("LayerNormalization")
def _layer_norm(call: Call) -> Tensor:
    x, axis = call.tensor(0), call.get("axis", -1)
    if call.outputs > 1:
        raise Unsupported(f"{call.where}: LayerNormalization that gives its mean")
    shape = [int(size) for size in x.shape[axis:]]
    bias = call.optional(2)
    return functional.layer_norm(
        x, shape, call.tensor(1).expand(shape), None if bias is None else bias.expand(shape), call.get("epsilon", 1e-5)
    )


@operator("RMSNormalization")
def _rms_norm(call: Call) -> Tensor:
    x, axis = call.tensor(0), call.get("axis", -1)
    axes = list(range(axis % x.dim(), x.dim()))
    return x * torch.rsqrt((x * x).mean(axes, keepdim=True) + call.get("epsilon", 1e-5)) * call.tensor(1)


@operator("BatchNormalization")
def _batch_norm(call: Call) -> Tensor:
    if call.get("training_mode", 0) or call.outputs > 1:
        raise Unsupported(f"{call.where}: BatchNormalization in training mode; export the model in eval()")
    x, scale, bias, mean, var = (call.tensor(position) for position in range(5))
    return functional.batch_norm(x, mean, var, scale, bias, False, 0.0, call.get("epsilon", 1e-5))


@operator("CumSum", host=[1])
def _cumsum(call: Call) -> Tensor:
    axis = int(call.host(1, "axis").item())
    if call.get("exclusive", 0) or call.get("reverse", 0):
        raise Unsupported(f"{call.where}: CumSum that is exclusive or reversed")
    return torch.cumsum(call.tensor(0), axis)


def _axes(call: Call) -> list[int] | None:
    return call.ints(1, "axes", "axes") or None


def _reduce(function: Callable[[Tensor, list[int], bool], Tensor]) -> Callable[[Call], Any]:
    def run(call: Call) -> Any:
        x, axes = call.values[0], _axes(call)
        if axes is None and call.get("noop_with_empty_axes", 0):
            return x
        if isinstance(x, np.ndarray) and call.where.startswith("ReduceProd"):
            return np.array(math.prod(x.reshape(-1)), x.dtype).reshape([1] if call.get("keepdims", 1) else [])
        given = call.tensor(0)
        return function(given, list(range(given.dim())) if axes is None else axes, bool(call.get("keepdims", 1)))

    return run


def _prod(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


_REDUCE: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdim=keep),
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keepdim=keep),
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
    function = torch.argmax if call.where.startswith("ArgMax") else torch.argmin
    return function(call.tensor(0), call.get("axis", 0), keepdim=bool(call.get("keepdims", 1)))


@operator("TopK", host=[1])
def _topk(call: Call) -> Any:
    count = int(call.host(1, "K").item())
    return tuple(torch.topk(call.tensor(0), count, call.get("axis", -1), bool(call.get("largest", 1))))
