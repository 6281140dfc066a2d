"""Collects the values, weights and steps of a graph while it is lowered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from storage.checkpoint.assembly import TensorValue, value_of
from storage.checkpoint.fused.constants import Constants
from storage.checkpoint.fused.layout import Layout, Stretch
from storage.checkpoint.fused.steps import (
    Combine,
    Copy,
    Kind,
    Layer,
    Linear,
    Operation,
    PairIndex,
    Pairs,
    Part,
    Step,
    Steps,
    Value,
)
from storage.errors import Unsupported

# A layout of more stretches than this would be copied float by float.
_MAX_STRETCHES = 4096


@dataclass(frozen=True)
class Tensor:
    """A tensor of a graph while it is lowered. `dtype` is the graph's; all floats are computed as float32."""

    layout: Layout
    dtype: torch.dtype

    def at(self, layout: Layout) -> Tensor:
        """Returns the tensor with another layout. Raises Unsupported for one that lies in too many places."""
        if len(layout.stretches) > _MAX_STRETCHES:
            raise Unsupported("a tensor that lies in too many places")
        return Tensor(layout, self.dtype)


class Building:
    """Values and steps so far. `of_batch` are the graph's nodes that depend on the batch; all others are constants."""

    def __init__(self, graph: fx.Graph, of_batch: set[fx.Node]) -> None:
        self.of_batch = of_batch
        self.constants = Constants(graph, of_batch)
        self.value_constants: dict[int, int] = {}
        self._values: list[Value] = []
        self._steps: list[Step] = []
        self._layers: list[Layer] = []
        self._indices: list[PairIndex] = []

    def steps(self) -> Steps:
        """Returns what was collected."""
        return Steps(tuple(self._values), tuple(self._layers), tuple(self._indices), tuple(self._steps))

    def value(self, kind: Kind, width: int) -> int:
        """Adds a value; returns its number."""
        if width == 0:
            raise Unsupported("a tensor of nothing")
        self._values.append(Value(kind, width))
        return len(self._values) - 1

    def set_kind(self, value: int, kind: Kind) -> None:
        """Changes where a value comes from."""
        self._values[value] = Value(kind, self._values[value].width)

    def kind(self, value: int) -> Kind:
        """Returns where a value comes from."""
        return self._values[value].kind

    def scratch(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Part]:
        """Adds a value for a step to write; returns it as a tensor and as a part."""
        width = math.prod(shape)
        value = self.value(Kind.SCRATCH, width)
        return Tensor(Layout(tuple(shape), (Stretch(value, 0, width),)), dtype), Part(value, 0)

    def add(self, step: Step) -> None:
        """Adds a step."""
        self._steps.append(step)

    def whole(self, layout: Layout) -> Part:
        """Returns where the floats of a layout lie one behind the other; copies them together where they do not."""
        if len(layout.stretches) == 1:
            return Part(layout.stretches[0].value, layout.stretches[0].start)
        _, part = self.scratch(layout.shape)
        self.copy(layout, part.value)
        return part

    def copy(self, layout: Layout, value: int) -> None:
        """Copies a layout into a value."""
        offset = 0
        for each in layout.stretches:
            self.add(Copy(Part(each.value, each.start), Part(value, offset), each.length))
            offset += each.length

    def layer(self, tensor: Tensor, weight: fx.Node, bias: fx.Node | None, *, is_transposed: bool) -> Tensor:
        """Adds a linear layer over the last size of a tensor. is_transposed: the weight is (in, out)."""
        if weight in self.of_batch or bias in self.of_batch:
            raise Unsupported("a linear layer whose weights depend on the batch")
        described = value_of(weight)
        if not isinstance(described, TensorValue) or len(described.sizes) != 2 or not tensor.layout.shape:
            raise Unsupported("a product with what is no matrix")
        width, out = (int(size) for size in (described.sizes if is_transposed else reversed(described.sizes)))
        *outer, last = tensor.layout.shape
        if last != width:
            raise Unsupported("a linear layer over the batch")
        places = self.constants.matrix(weight), None if bias is None else self.constants.matrix(bias)
        self._layers.append(Layer(*places, width, out, is_transposed, tensor.dtype == torch.bfloat16))
        source = self.whole(tensor.layout)
        made, part = self.scratch((*outer, out), tensor.dtype)
        self.add(Linear(source, part, width, out, math.prod(outer), len(self._layers) - 1))
        return made

    def pairs(self, tensor: Tensor, index: int, length: int) -> Tensor:
        """Adds what an index takes of the products of all pairs of vectors.

        tensor: (n, dim). index: its place among the constants.
        """
        n, dim = tensor.layout.shape
        vectors = tuple(self.whole(tensor.layout.sliced(0, i, i + 1)) for i in range(n))
        self._indices.append(PairIndex(index, n, length))
        made, part = self.scratch((length,), tensor.dtype)
        self.add(Pairs(vectors, part, dim, length, len(self._indices) - 1))
        return made

    def combined(self, left: Any, right: Any, operation: Operation, shape: tuple[int, ...]) -> Tensor:
        """Adds an operation on two operands, each broadcast to the shape of a row."""
        parts = self._operand(left, shape), self._operand(right, shape)
        made, part = self.scratch(shape)
        self.add(Combine(*parts, part, math.prod(shape), operation))
        return made

    def _operand(self, given: Any, shape: tuple[int, ...]) -> Part:
        """Returns a tensor, a constant or a number as a part as wide as `shape`."""
        if isinstance(given, Tensor):
            if len(given.layout.shape) != len(shape):
                raise Unsupported("an operator that broadcasts over the batch")
            return self.whole(given.at(given.layout.expanded(shape)).layout)
        if isinstance(given, fx.Node):
            described = value_of(given)
            sizes = described.sizes if isinstance(described, TensorValue) else None
            if sizes is None or len(sizes) > len(shape) + (len(sizes) > 0 and sizes[0] == 1):
                raise Unsupported("an operator that broadcasts over the batch")
            return self._constant(self.constants.filled(shape, given), shape)
        if isinstance(given, int | float) and not isinstance(given, bool):
            return self._constant(self.constants.number(shape, float(given)), shape)
        raise Unsupported(f"the operand {str(given)[:60]!r}")

    def _constant(self, constant: int, shape: tuple[int, ...]) -> Part:
        value = self.value_constants.get(constant)
        if value is None:
            value = self.value_constants[constant] = self.value(Kind.CONSTANT, math.prod(shape))
        return Part(value, 0)
