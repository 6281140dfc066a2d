"""Reads rows of files as the trainer does, and converts their times to those of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from storage.data import DataRows, Wanted
from storage.errors import EmberlineError
from storage.features import InputSpec

# Microseconds in one unit; nanoseconds are divided instead.
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "day": 86_400_000_000}


def read_columns(data: str, inputs: Sequence[InputSpec], rows: int) -> pa.Table:
    """Returns the first `rows` rows with the columns of the inputs. data: a file, folder, pattern or URL.

    Raises ValueError naming a column that is missing or of another type than in training, or a file that cannot be
    read.
    """
    try:
        found = DataRows.open(data, Wanted(inputs)).range(0, rows)
        if found.rows == 0:
            raise ValueError(f"{data} has no rows")
        return found.read()
    except EmberlineError as error:
        raise ValueError(str(error)) from error


def time_unit(kind: Any) -> str:
    """Returns the unit of a time of this Arrow type, of a list that of its values; "" for a type that is no time."""
    kind = value_type(kind)
    if pa.types.is_date(kind):
        return "day" if pa.types.is_date32(kind) else "ms"
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind):
        return str(kind.unit)
    return ""


def value_type(kind: Any) -> Any:
    """Returns the Arrow type of a column's values: of a list or a dictionary, that of its content."""
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def raw_integers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Converts a column of times, or of lists of them, to the integers that it counts in its own unit."""
    flat = pa.int32() if value_type(column.type).bit_width == 32 else pa.int64()
    return column.cast(flat if value_type(column.type) == column.type else pa.list_(flat))


def microseconds(values: Any, unit: str) -> Any:
    """Converts an int64 array of times in `unit` to microseconds; nanoseconds are rounded down."""
    return values // 1_000 if unit == "ns" else values * _MICROSECONDS[unit]
