"""Lowers each operator to another layout of the same floats, or to a step.

A rule takes the lowering, the operator's node and its arguments by name, and returns what became of its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from storage.checkpoint.fused.building import Building, Tensor
from storage.checkpoint.fused.layout import concatenated
from storage.checkpoint.fused.steps import Activate, Activation, Operation, Sum
from storage.errors import Unsupported

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_MAX_VECTORS = 256
_TO_THE_END = 2**63 - 1

Given = dict[str, Any]


@dataclass(frozen=True)
class Swapped:
    """(B, N, D) with its last two sizes swapped."""

    of: Tensor


@dataclass(frozen=True)
class Square:
    """The products of all pairs of N vectors: (B, N, N), or (B, N * N) where it is flat."""

    of: Tensor
    is_flat: bool = False


class Lowering(Protocol):
    """Gives rules what they need of the graph that is lowered."""

    building: Building

    def found(self, node: Any) -> Any:
        """Returns what became of a node that depends on the batch; None for others."""

    def tensor(self, node: Any) -> Tensor:
        """Returns a node that became a tensor. Raises Unsupported."""

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """Returns the sizes of a node's row. Raises Unsupported where its first size is not the batch."""

    def of_users(self, node: fx.Node, index: fx.Node) -> Tensor:
        """Returns the rows of an input that an index of users takes. Raises Unsupported."""


def _dim(dim: int, sizes: int) -> int:
    """Returns the place of a size in a row. sizes: of a row."""
    place = dim % (sizes + 1) - 1
    if place < 0:
        raise Unsupported("an operator along the batch")
    return place


def _reshape(low: Lowering, node: fx.Node, given: Given) -> Tensor | Square:
    found, shape = low.found(given["self"]), low.shape(node)
    if isinstance(found, Square) and len(shape) == 1:
        return Square(found.of, True)
    tensor = low.tensor(given["self"])
    if math.prod(shape) != tensor.layout.width:
        raise Unsupported("a reshape over the batch")
    return tensor.at(tensor.layout.reshaped(shape))


def _nothing(low: Lowering, node: fx.Node, given: Given) -> Any:
    return low.found(given["self"])


def _cast(low: Lowering, node: fx.Node, given: Given) -> Tensor | Square:
    found = low.found(given["self"])
    tensor = found.of if isinstance(found, Square) else low.tensor(given["self"])
    dtype = given.get("dtype") or tensor.dtype
    if dtype not in _FLOATS:
        raise Unsupported(f"a conversion to {dtype}")
    made = Tensor(tensor.layout, dtype)
    return Square(made, found.is_flat) if isinstance(found, Square) else made


def _expand(low: Lowering, node: fx.Node, given: Given) -> Tensor:
    tensor, shape = low.tensor(given["self"]), low.shape(node)
    if len(shape) != len(tensor.layout.shape):
        raise Unsupported("an expansion over the batch")
    return tensor.at(tensor.layout.expanded(shape))


def _cat(low: Lowering, node: fx.Node, given: Given) -> Tensor:
    tensors = [low.tensor(each) for each in given["tensors"]]
    dim = _dim(given["dim"], len(tensors[0].layout.shape))
    return tensors[0].at(concatenated([each.layout for each in tensors], dim))


def _stack(low: Lowering, node: fx.Node, given: Given) -> Tensor:
    tensors = [low.tensor(each) for each in given["tensors"]]
    shape = tensors[0].layout.shape
    dim = _dim(given["dim"], len(shape) + 1)
    wide = [each.layout.reshaped((*shape[:dim], 1, *shape[dim:])) for each in tensors]
    return tensors[0].at(concatenated(wide, dim))


def _slice(low: Lowering, node: fx.Node, given: Given) -> Tensor:
    tensor = low.tensor(given["self"])
    shape = tensor.layout.shape
    start, stop, step = given["start"] or 0, given["end"], given["step"]
    if given["dim"] == 0:
        if start == 0 and stop in (None, _TO_THE_END) and step == 1:
            return tensor
        raise Unsupported("a slice of the batch")
    dim = _dim(given["dim"], len(shape))
    start, stop, step = slice(start, stop, step).indices(shape[dim])
    if step != 1 or stop <= start:
        raise Unsupported("a slice with steps, or of nothing")
    return tensor.at(tensor.layout.sliced(dim, start, stop))


def _select(low: Lowering, node: fx.Node, given: Given) -> Tensor:
    tensor = low.tensor(given["self"])
    shape = tensor.layout.shape
    dim = _dim(given["dim"], len(shape))
    start = given["index"] % shape[dim]
    return tensor.at(tensor.layout.sliced(dim, start, start + 1).reshaped((*shape[:dim], *shape[dim + 1 :])))


def _split(low: Lowering, node: fx.Node, given: Given) -> list[Tensor]:
    tensor = low.tensor(given["self"])
    dim = _dim(given["dim"], len(tensor.layout.shape))
    size = tensor.layout.shape[dim]
    sizes: Any = -(-size // given["chunks"]) if "chunks" in given else given.get("split_sizes", given.get("split_size"))
    if isinstance(sizes, int):
        sizes = [min(sizes, size - start) for start in range(0, size, sizes)]
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [tensor.at(tensor.layout.sliced(dim, end - each, end)) for each, end in zip(sizes, ends, strict=True)]


def _transpose(low: Lowering, node: fx.Node, given: Given) -> Swapped:
    tensor = low.tensor(given["self"])
    is_swapped = given.get("dims") in ([0, 2, 1], [0, -1, -2])
    if "dim0" in given:
        is_swapped = {given["dim0"] % 3, given["dim1"] % 3} == {1, 2}
    if len(tensor.layout.shape) != 2 or not is_swapped:
        raise Unsupported("a transpose that is not of the last two sizes")
    return Swapped(tensor)


def _products(low: Lowering, node: fx.Node, given: Given) -> Tensor | Square:
    left = given["self"]
    right = given["mat2"] if "mat2" in given else given["other"]
    if right not in low.building.of_batch:
        return low.building.layer(low.tensor(left), right, None, is_transposed=True)
    of, swapped = low.found(left), low.found(right)
    if not isinstance(swapped, Swapped) or not isinstance(of, Tensor) or swapped.of.layout != of.layout:
        raise Unsupported("a product of two inputs that is not one of all pairs")
    if of.layout.shape[0] > _MAX_VECTORS:
        raise Unsupported("a product of so many vectors")
    return Square(of)


def _linear(low: Lowering, node: fx.Node, given: Given) -> Tensor:
    return low.building.layer(low.tensor(given["input"]), given["weight"], given["bias"], is_transposed=False)


def _addmm(low: Lowering, node: fx.Node, given: Given) -> Tensor:
    if given["alpha"] != 1 or given["beta"] != 1 or given["self"] in low.building.of_batch:
        raise Unsupported("an addmm that is no linear layer")
    return low.building.layer(low.tensor(given["mat1"]), given["mat2"], given["self"], is_transposed=True)


def _index_select(low: Lowering, node: fx.Node, given: Given) -> Tensor:
    whole, index = given["self"], given["index"]
    if given["dim"] == 0:
        return low.of_users(whole, index)
    found = low.found(whole)
    if not isinstance(found, Square) or not found.is_flat or index in low.building.of_batch:
        raise Unsupported("an index_select that is not of products of pairs")
    (length,) = low.shape(node)
    return low.building.pairs(found.of, low.building.constants.integers(index), length)


def _index(low: Lowering, node: fx.Node, given: Given) -> Tensor:
    """Lowers products[:, rows, columns]."""
    found, indices = low.found(given["self"]), given["indices"]
    if not isinstance(found, Square) or found.is_flat or len(indices) != 3 or indices[0] is not None:
        raise Unsupported("an index that is not of products of pairs")
    _, rows, columns = indices
    if not all(isinstance(each, fx.Node) and each not in low.building.of_batch for each in (rows, columns)):
        raise Unsupported("an index that depends on the batch")
    (length,) = low.shape(node)
    place = low.building.constants.pair_index(rows, columns, found.of.layout.shape[0])
    return low.building.pairs(found.of, place, length)


def _activate(activation: Activation) -> Callable[[Lowering, fx.Node, Given], Tensor]:
    def rule(low: Lowering, node: fx.Node, given: Given) -> Tensor:
        tensor = low.tensor(given["self"])
        source = low.building.whole(tensor.layout)
        made, part = low.building.scratch(tensor.layout.shape, tensor.dtype)
        low.building.add(Activate(source, part, tensor.layout.width, activation))
        return made

    return rule


def _combine(operation: Operation) -> Callable[[Lowering, fx.Node, Given], Tensor]:
    def rule(low: Lowering, node: fx.Node, given: Given) -> Tensor:
        if given.get("alpha", 1) != 1:
            raise Unsupported("a sum with a factor")
        left, right = _operand(low, given["self"]), _operand(low, given["other"])
        if node.target._schema.name == "aten::rsub":  # type: ignore[union-attr]
            left, right = right, left
        return low.building.combined(left, right, operation, low.shape(node))

    return rule


def _divide(low: Lowering, node: fx.Node, given: Given) -> Tensor:
    divisor = given["other"]
    if not isinstance(divisor, int | float) or divisor == 0 or given.get("rounding_mode") is not None:
        raise Unsupported("a division by a tensor, or one that rounds")
    left = _operand(low, given["self"])
    return low.building.combined(left, 1.0 / divisor, Operation.MULTIPLY, low.shape(node))


def _square(low: Lowering, node: fx.Node, given: Given) -> Tensor:
    if given.get("exponent", 2) != 2:
        raise Unsupported("a power that is no square")
    tensor = low.tensor(given["self"])
    return low.building.combined(tensor, tensor, Operation.MULTIPLY, low.shape(node))


def _sum(low: Lowering, node: fx.Node, given: Given) -> Tensor:
    tensor = low.tensor(given["self"])
    shape = tensor.layout.shape
    dims = given.get("dim")
    if not dims or len(dims) != 1 or given.get("dtype") is not None:
        raise Unsupported("a sum over several sizes")
    dim = _dim(dims[0], len(shape))
    source = low.building.whole(tensor.layout)
    kept = (1,) if given["keepdim"] else ()
    made, part = low.building.scratch((*shape[:dim], *kept, *shape[dim + 1 :]))
    low.building.add(Sum(source, part, math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])))
    return made


def _operand(low: Lowering, given: Any) -> Any:
    """Returns a tensor for a node that depends on the batch; a constant or a number as it is."""
    return low.tensor(given) if given in low.building.of_batch else given


Rule = Callable[[Lowering, fx.Node, Given], Any]
_RESHAPES = (
    *("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "_unsafe_view", "view_copy"),
    *("squeeze_copy", "unsqueeze_copy"),
)

#: By the operator's name.
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_RESHAPES, _reshape),
    **dict.fromkeys(("contiguous", "clone", "alias", "detach", "lift_fresh_copy", "detach_copy"), _nothing),
    **dict.fromkeys(("expand", "expand_as", "expand_copy", "broadcast_to"), _expand),
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    **dict.fromkeys(("slice", "slice_copy"), _slice),
    **dict.fromkeys(("select", "select_copy"), _select),
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _split),
    **dict.fromkeys(("transpose", "permute"), _transpose),
    **dict.fromkeys(("bmm", "mm", "matmul"), _products),
    **dict.fromkeys(("pow", "square"), _square),
    **dict.fromkeys(("sub", "rsub"), _combine(Operation.SUBTRACT)),
    "_to_copy": _cast,
    "add": _combine(Operation.ADD),
    "addmm": _addmm,
    "div": _divide,
    "index": _index,
    "index_select": _index_select,
    "linear": _linear,
    "mul": _combine(Operation.MULTIPLY),
    "relu": _activate(Activation.RELU),
    "sigmoid": _activate(Activation.SIGMOID),
    "silu": _activate(Activation.SILU),
    "stack": _stack,
    "sum": _sum,
    "tanh": _activate(Activation.TANH),
}
