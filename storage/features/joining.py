"""Finds requests that one run of the feature engine can serve together."""

from __future__ import annotations

from collections.abc import Mapping

from storage.features.columns import Column
from storage.features.flat import FlatColumns


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
