"""The layout of the ids of one call of an embedding layer: which columns of the batch they are, and where its rows lie.

B rows of the batch, W ids of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trainer.publishing.id_steps import Chain
from trainer.publishing.tracing import Traced, Tracer


@dataclass(frozen=True)
class IdColumn:
    """One id of each row: a column of a sample tensor after some steps, or a constant."""

    #: The sample tensor; "" for a constant.
    leaf: str
    #: Its column, or the constant itself.
    place: int
    chain: Chain = ()


@dataclass(frozen=True)
class Placement:
    """Says how ids (B, W) lie in the shape of a call: along an axis of their own, or in the first axis with others."""

    #: outer: the first axis counts the ids of row 0, then those of row 1; inner: the first ids of all rows first.
    form: Literal["axis", "outer", "inner"]
    #: With form axis, the axis of the batch.
    axis: int
    #: The shape without the batch. With form outer or inner, the first size is that of the first axis divided by B.
    rest: tuple[int, ...]

    def placed(self, values: Tensor) -> Tensor:
        """Returns values (B, W, D) in the shape of the call, with D at the end."""
        batch, dim = values.shape[0], values.shape[2]
        if self.form == "axis":
            whole = values if self.rest == tuple(values.shape[1:2]) else values.reshape(batch, *self.rest, dim)
            return whole if self.axis == 0 else whole.movedim(0, self.axis)
        if self.form == "inner":
            return values.movedim(0, 1).reshape(batch * self.rest[0], dim)
        return values.reshape(batch * self.rest[0], *self.rest[1:], dim)


@dataclass(frozen=True)
class CallLayout:
    """The ids of a call by column, in the order of the call."""

    columns: tuple[IdColumn, ...]
    placement: Placement


def batch_axis(leaf: Tensor, rows: int) -> int | None:
    """Returns the axis of a sample tensor that is the batch: the first, or the second of two; None for neither."""
    if leaf.dim() and leaf.shape[0] == rows:
        return 0
    return 1 if leaf.dim() == 2 and leaf.shape[1] == rows else None


def by_rows(leaf: Tensor, rows: int) -> Tensor:
    """Returns a sample tensor with a batch as (B, W)."""
    return leaf.t() if batch_axis(leaf, rows) == 1 else leaf.reshape(rows, -1)


def call_layout(traced: Traced, tracer: Tracer, rows: int) -> CallLayout | None:
    """Returns the layout of a call's ids; None where row i of the ids is not made of row i of the batch alone."""
    row_of, number_of, columns = _decoded(traced.codes, tracer, rows)
    for placement, arranged in _placements(traced.shape, rows):
        own, numbers = arranged(row_of), arranged(number_of)
        fits = (own == torch.arange(rows)[:, None]) | (own == -1)
        if own.numel() and bool((own >= 0).any()) and bool(fits.all()) and bool((numbers == numbers[:1]).all()):
            return CallLayout(tuple(columns[number] for number in numbers[0].tolist()), placement)
    return None


def whole_leaf(traced: Traced, tracer: Tracer) -> tuple[str, Chain] | None:
    """Returns the sample tensor of one dimension that a tensor is, element by element, and the steps of all of them."""
    codes = traced.codes
    if traced.leaf and codes.dim() == 1:
        return traced.leaf, ()
    if codes.dim() != 1 or not codes.numel():
        return None
    number, first = divmod(int(codes[0]), tracer.count)
    for name, start in tracer.starts.items():
        leaf = tracer.leaves[name]
        if start == first and leaf.dim() == 1 and leaf.numel() == codes.numel():
            wanted = number * tracer.count + start + torch.arange(codes.numel())
            return (name, tracer.steps[number]) if torch.equal(codes, wanted) else None
    return None


def are_offsets_as_given(traced: Traced, tracer: Tracer) -> bool:
    """Returns whether offsets are a sample tensor, or a row or column of one, as it is: whole, without its last one, or
    behind a constant 0.
    """
    chains, elements = traced.codes // tracer.count, traced.codes % tracer.count
    if traced.codes.dim() != 1 or not elements.numel():
        return False
    if int(elements[0]) == tracer.count - 1 and _constant(tracer.steps[int(chains[0])]) == 0:
        chains, elements = chains[1:], elements[1:]
    count, is_same = elements.numel(), all(not set(tracer.steps[each]) - {("narrow",)} for each in set(chains.tolist()))
    return is_same and any(
        len(line) - 1 <= count <= len(line) and torch.equal(elements, tracer.starts[name] + line[:count])
        for name, leaf in tracer.leaves.items()
        for line in _lines(leaf)
    )


def _lines(leaf: Tensor) -> list[Tensor]:
    """Returns the numbers of a vector's elements, or those of each row and each column of a matrix."""
    numbers = torch.arange(leaf.numel()).reshape(leaf.shape)
    if leaf.dim() == 2:
        return [*numbers, *numbers.t()]
    return [numbers] if leaf.dim() == 1 else []


def _placements(shape: tuple[int, ...], rows: int) -> list[tuple[Placement, Callable[[Tensor], Tensor]]]:
    """Returns the placements that a shape can have, each with what brings a tensor of it to (B, W)."""
    found: list[tuple[Placement, Callable[[Tensor], Tensor]]] = []
    for axis, size in enumerate(shape):
        if size == rows:

            def moved(value: Tensor, axis: int = axis) -> Tensor:
                return value.movedim(axis, 0).reshape(rows, -1)

            found.append((Placement("axis", axis, (*shape[:axis], *shape[axis + 1 :])), moved))
    if shape and shape[0] > rows and shape[0] % rows == 0:
        count = shape[0] // rows
        found.append((Placement("outer", 0, (count, *shape[1:])), lambda value: value.reshape(rows, -1)))
        if len(shape) == 1:
            found.append((Placement("inner", 0, (count,)), lambda value: value.reshape(count, rows).t()))
    return found


def _decoded(codes: Tensor, tracer: Tracer, rows: int) -> tuple[Tensor, Tensor, list[IdColumn]]:
    """Returns for each element its row (-1 for a constant) and the number of its column, and all columns."""
    chains, elements = codes // tracer.count, codes % tracer.count
    row_of, number_of = torch.full_like(codes, -1), torch.zeros_like(codes)
    columns: list[IdColumn] = []
    for name, leaf in tracer.leaves.items():
        start, axis = tracer.starts[name], batch_axis(leaf, rows)
        mine = (elements >= start) & (elements < start + leaf.numel())
        if not bool(mine.any()):
            continue
        places = elements[mine] - start
        if axis is None:
            row_of[mine] = rows  # it has no batch, so it is of no row
            continue
        width = max(1, leaf.numel() // rows)
        own_rows, own = (places % rows, places // rows) if axis == 1 else (places // width, places % width)
        row_of[mine] = own_rows
        unique, numbers = torch.unique(torch.stack([own, chains[mine]]), dim=1, return_inverse=True)
        number_of[mine] = numbers + len(columns)
        columns += [IdColumn(name, place, tracer.steps[chain]) for place, chain in zip(*unique.tolist(), strict=True)]
    fixed = elements == tracer.count - 1
    if bool(fixed.any()):
        unique, numbers = torch.unique(chains[fixed], return_inverse=True)
        number_of[fixed] = numbers + len(columns)
        columns += [IdColumn("", _constant(tracer.steps[chain])) for chain in unique.tolist()]
    return row_of, number_of, columns


def _constant(chain: Chain) -> int:
    """Returns the integer that a constant is after its steps."""
    (_, value), *steps = chain
    for step in steps:
        match step:
            case ("add", amount):
                value += amount
            case ("multiply", factor):
                value *= factor
            case ("modulo", divisor):
                value %= divisor
            case ("floor_divide", divisor):
                value //= divisor
            case ("replace", low, high, outside, by):
                value = by if (low <= value <= high) != outside else value
            case ("is", low, high, outside):
                value = int((low <= value <= high) != outside)
    return int(value)
