"""Replaces the ids of rows by ids drawn with another popularity, whose hot ids may drift over time.

The ids themselves are those of the data, so that the model knows them; the more often one occurs in the data, the
hotter it is at first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadtest.data import time_unit, value_type
from loadtest.popularity import Popularity, parse_popularity
from loadtest.rows import InputMetadata

_ID_TYPES = {"INT64", "INT32", "UINT64", "BYTES"}


class IdColumn:
    """The ids of one column by their popularity."""

    def __init__(self, ids: pa.Array, popularity: Popularity, rng: np.random.Generator) -> None:
        self._ids, self._popularity, self._rng = ids, popularity, rng
        self._ranked = np.arange(len(ids))

    def drift(self, share: float) -> None:
        """Gives each rank another id with this probability; ranks exchange them in pairs, so that each id keeps one."""
        pairs = self._rng.binomial(len(self._ranked) // 2, share)
        first, second = np.split(self._rng.permutation(len(self._ranked))[: 2 * pairs], 2)
        self._ranked[first], self._ranked[second] = self._ranked[second], self._ranked[first]

    def draw(self, count: int) -> pa.Array:
        """Returns `count` ids."""
        return self._ids.take(pa.array(self._ranked[self._popularity.ranks(self._rng, count)]))


class DrawnIds:
    """Draws the ids of all columns of ids. Raises ValueError where the data has none."""

    def __init__(self, table: pa.Table, inputs: Sequence[InputMetadata], popularity: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._columns: dict[str, IdColumn] = {}
        for entry in inputs:
            column = table.column(entry.name)
            if entry.dtype in _ID_TYPES and not entry.unit and not time_unit(column.type):
                ids = _by_frequency(column)
                if len(ids):
                    self._columns[entry.name] = IdColumn(ids, parse_popularity(popularity, len(ids)), rng)
        if not self._columns:
            raise ValueError("--ids: no input of the model holds ids (whole numbers or text that are no times)")

    @property
    def distinct(self) -> dict[str, int]:
        """The number of different ids of each column."""
        return {name: len(column._ids) for name, column in self._columns.items()}

    def drift(self, share: float) -> None:
        """Gives each rank of each column another id with this probability."""
        for column in self._columns.values():
            column.drift(share)

    def replace(self, rows: pa.Table) -> pa.Table:
        """Returns the rows with other ids. Nulls and the lengths of lists stay."""
        for name, ids in self._columns.items():
            column = rows.column(name).combine_chunks()
            column = column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)
            rows = rows.set_column(rows.column_names.index(name), name, _replaced(column, ids))
        return rows


def _by_frequency(column: pa.ChunkedArray) -> pa.Array:
    """Returns the different values of a column, of lists their content, the most frequent first."""
    counted = pc.value_counts(_flat(column.combine_chunks()).drop_null())
    order = np.argsort(-np.asarray(counted.field("counts")), kind="stable")
    return counted.field("values").take(pa.array(order))


def _flat(column: Any) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    while column.type != value_type(column.type) and not pa.types.is_dictionary(column.type):
        column = column.flatten()
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _replaced(column: pa.Array, ids: IdColumn) -> pa.Array:
    flat = _flat(column)
    drawn = ids.draw(len(flat))
    if flat.null_count:
        drawn = pc.if_else(flat.is_valid(), drawn, pa.scalar(None, drawn.type))
    if pa.types.is_fixed_size_list(column.type):
        return pa.FixedSizeListArray.from_arrays(drawn, column.type.list_size)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        found = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), drawn)
        if column.null_count:
            found = pc.if_else(column.is_valid(), found, pa.scalar(None, found.type))
        return found
    return drawn
