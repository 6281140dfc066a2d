"""Describes where the floats of a tensor's row lie: stretches of values, one behind the other.

Operators that only select and arrange (cat, stack, slice, reshape) change this, and compute nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Stretch:
    """`length` floats of a row of a value, from `start` on."""

    value: int
    start: int
    length: int


@dataclass(frozen=True)
class Layout:
    """A tensor with the batch as its first size. `shape` has its other sizes; stretches are in row-major order."""

    shape: tuple[int, ...]
    stretches: tuple[Stretch, ...]

    @property
    def width(self) -> int:
        """Floats of a row."""
        return math.prod(self.shape)

    def reshaped(self, shape: Sequence[int]) -> Layout:
        """Returns the same floats with other sizes."""
        return Layout(tuple(shape), self.stretches)

    def picked(self, start: int, length: int) -> tuple[Stretch, ...]:
        """Returns `length` floats of a row, from `start` on."""
        found = []
        for each in self.stretches:
            if start < each.length and length > 0:
                some = min(length, each.length - start)
                found.append(Stretch(each.value, each.start + start, some))
                length -= some
                start = 0
            else:
                start -= min(start, each.length)
        return tuple(found)

    def sliced(self, dim: int, start: int, stop: int) -> Layout:
        """Returns a slice along a size of `shape`."""
        outer, inner = math.prod(self.shape[:dim]), math.prod(self.shape[dim + 1 :])
        step = self.shape[dim] * inner
        parts = [self.picked(o * step + start * inner, (stop - start) * inner) for o in range(outer)]
        return Layout((*self.shape[:dim], stop - start, *self.shape[dim + 1 :]), _joined(parts))

    def expanded(self, shape: Sequence[int]) -> Layout:
        """Returns the layout with sizes of 1 repeated. shape: as many sizes."""
        found = self
        for dim, size in enumerate(shape):
            if found.shape[dim] != size:
                found = concatenated([found] * size, dim)
        return found


def concatenated(layouts: Sequence[Layout], dim: int) -> Layout:
    """Returns tensors one behind the other along a size of their shapes."""
    first = layouts[0].shape
    outer = math.prod(first[:dim])
    parts = []
    for o in range(outer):
        for each in layouts:
            step = math.prod(each.shape[dim:])
            parts.append(each.picked(o * step, step))
    size = sum(each.shape[dim] for each in layouts)
    return Layout((*first[:dim], size, *first[dim + 1 :]), _joined(parts))


def _joined(parts: Sequence[tuple[Stretch, ...]]) -> tuple[Stretch, ...]:
    """Joins stretches, those that are neighbours into one."""
    found: list[Stretch] = []
    for part in parts:
        for each in part:
            last = found[-1] if found else None
            if last is not None and last.value == each.value and last.start + last.length == each.start:
                found[-1] = Stretch(last.value, last.start, last.length + each.length)
            else:
                found.append(each)
    return tuple(found)
