"""Concatenates the columns of several requests, so that one run of the feature engine serves them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from storage.errors import InvalidInput
from storage.features.batch import join_offsets
from storage.features.columns import BytesValues, Column, Values
from storage.features.flat import FlatColumns, join_flat


def is_row_by_row(columns: Mapping[str, Column], batch: int) -> bool:
    """Returns whether every column has a row for each row of the request; else a user's one row applies to them all."""
    if isinstance(columns, FlatColumns) and columns.layout.is_plain:
        return True
    return all(column.rows == batch for column in columns.values())


def can_join(first: Mapping[str, Column], other: Mapping[str, Column]) -> bool:
    """Returns whether two requests have the same inputs in the same forms."""
    if isinstance(first, FlatColumns) and isinstance(other, FlatColumns) and first.layout is other.layout:
        return True
    if first.keys() != other.keys():
        return False
    for name, column in first.items():
        own = other[name]
        if own.dtype != column.dtype or own.width != column.width or (own.offsets is None) != (column.offsets is None):
            return False
    return True


def join_columns(requests: Sequence[Mapping[str, Column]]) -> Mapping[str, Column]:
    """Joins the columns of all requests, row by row, in new arrays. `can_join` is true of each request and the first.

    A single request is returned as it is. Raises InvalidInput for a column with more or fewer values than its rows
    have, because the values of other requests would be shifted.
    """
    first = requests[0]
    flat = [columns for columns in requests if isinstance(columns, FlatColumns) and columns.layout.is_plain]
    if len(flat) == len(requests) and all(columns.layout is flat[0].layout for columns in flat):
        return join_flat(flat)
    if len(requests) == 1:
        return first
    return {name: _join([columns[name] for columns in requests]) for name in first}


def _join(parts: list[Column]) -> Column:
    first = parts[0]
    for part in parts:
        count = part.rows * part.width if part.offsets is None else part.offsets[-1]
        if len(part.values) != count:
            raise InvalidInput(f"a column of {count} values holds {len(part.values)}")
    offsets = None
    if first.offsets is not None:
        offsets = join_offsets([part.offsets for part in parts if part.offsets is not None])
    valid = None
    if any(part.valid is not None for part in parts):
        valid = np.concatenate(
            [np.ones(part.rows * part.width, np.uint8) if part.valid is None else part.valid for part in parts],
            dtype=np.uint8,
            casting="unsafe",
        )
    rows = sum([part.rows for part in parts])
    return Column(first.dtype, rows, first.width, _join_values([part.values for part in parts]), offsets, valid)


def _join_values(parts: list[Values]) -> Values:
    strings = [part for part in parts if isinstance(part, BytesValues)]
    if not strings:
        return np.concatenate([part for part in parts if not isinstance(part, BytesValues)])
    base = np.cumsum([0] + [len(part.data) for part in strings[:-1]])
    return BytesValues(
        np.concatenate([part.data for part in strings]),
        np.concatenate([part.starts + start for part, start in zip(strings, base, strict=True)]),
        np.concatenate([part.ends + start for part, start in zip(strings, base, strict=True)]),
    )
