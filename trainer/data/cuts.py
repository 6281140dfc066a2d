"""Cuts features of many rows into batches, which costs less than to make them batch by batch.

A call of the engine, and of Arrow for each column, costs more than the work on a few hundred rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from storage.features import Column, FeatureBatch
from storage.features.batch import Jagged

Array = np.ndarray[Any, np.dtype[Any]]


def cut_features(made: FeatureBatch, rows: int) -> Iterator[FeatureBatch]:
    """Yields the features of each `rows` rows, and of those that are left.

    Floats are copied, so that where they lie in memory does not depend on what else was made with them: kernels of
    matrix products may round by that.
    """
    bounds = [*range(0, made.batch, rows), made.batch]
    ends: dict[int, list[Array]] = {}
    for bags in made.ids.values():
        if id(bags.offsets) not in ends:  # features share offsets
            offsets = bags.offsets
            ends[id(offsets)] = [offsets[i : j + 1] - offsets[i] for i, j in zip(bounds, bounds[1:], strict=False)]
    starts = {key: np.cumsum([0, *(int(part[-1]) for part in parts)]).tolist() for key, parts in ends.items()}
    for number, (first, last) in enumerate(zip(bounds, bounds[1:], strict=False)):
        dense = {group: values[first:last].copy() for group, values in made.dense.items()}
        ids = {}
        for name, bags in made.ids.items():
            key = id(bags.offsets)
            places = slice(starts[key][number], starts[key][number + 1])
            weights = None if bags.weights is None else bags.weights[places].copy()
            ids[name] = Jagged(bags.values[places], ends[key][number], weights)
        yield FeatureBatch(last - first, dense, ids)


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
