"""Cuts features of many rows into batches, which costs less than to make them batch by batch.

A call of the engine, and of Arrow for each column, costs more than the work on a few hundred rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from storage.features import Column, FeatureBatch


def cut_inputs(made: FeatureBatch, rows: int) -> list[dict[str, Tensor]]:
    """Returns the model's inputs for each `rows` rows, and for those that are left: at least for one batch.

    Keys are the name of each dense group, and F.values and F.offsets for each ids feature F, with F.weights beside them
    when its pooling is weighted. Ids and weights are views of all that was made. Floats are copied, so that where they
    lie in memory does not depend on what else was made with them: kernels of matrix products may round by that.
    """
    bounds = [*range(0, made.batch, rows), made.batch] if made.batch > rows else [0, made.batch]
    batches = list(zip(bounds, bounds[1:], strict=False))
    found: list[dict[str, Tensor]] = [{} for _ in batches]

    def put(key: str, parts: list[Tensor] | tuple[Tensor, ...]) -> None:
        for inputs, part in zip(found, parts, strict=True):
            inputs[key] = part

    for group, values in made.dense.items():
        parts = torch.split(torch.from_numpy(values), rows) if len(batches) > 1 else (torch.from_numpy(values),)
        put(group, [part.clone() for part in parts] if len(batches) > 1 else parts)
    known: dict[int, tuple[list[int], list[Tensor]]] = {}
    for name, bags in made.ids.items():
        if id(bags.offsets) not in known:  # features whose bags have the same ends share their offsets
            offsets = torch.from_numpy(bags.offsets)
            ends = [offsets[first : last + 1] - offsets[first] for first, last in batches]
            known[id(bags.offsets)] = ([int(part[-1]) for part in ends], ends)
        sizes, ends = known[id(bags.offsets)]
        put(f"{name}.values", torch.split(torch.from_numpy(bags.values), sizes))
        put(f"{name}.offsets", ends)
        if bags.weights is not None:
            weights = torch.split(torch.from_numpy(bags.weights), sizes)
            put(f"{name}.weights", [part.clone() for part in weights] if len(batches) > 1 else weights)
    return found


class ColumnsOfRows(Mapping[str, Column]):
    """The raw columns of some rows, cut out of those of more rows when they are asked for."""

    def __init__(self, columns: Mapping[str, Column], first: int, last: int) -> None:
        self._columns, self._first, self._last = columns, first, last

    def __getitem__(self, name: str) -> Column:
        column = self._columns[name].slice(self._first, self._last)
        if column.valid is not None and column.valid.all():
            return Column(column.dtype, column.rows, column.width, column.values, column.offsets)
        return column

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)
