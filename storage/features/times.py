"""Converts times of Arrow columns to microseconds, the one unit that requests and features have.

A timestamp counts from 1970-01-01T00:00 UTC; one without a time zone is taken as UTC, and a date as its midnight. A
time of day counts from midnight. Seconds, milliseconds and days convert exactly. Nanoseconds are rounded down, towards
the earlier microsecond. A time that does not fit 64 bits (dates beyond the years -290307 to 294246) is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from storage.errors import InvalidInput

# The microseconds in each unit; nanoseconds are divided instead.
_FACTORS = {"s": 1_000_000, "ms": 1_000, "us": 1, "day": 86_400_000_000}
_NANOSECONDS = 1_000


def is_time(kind: Any) -> bool:
    """Returns whether an Arrow type is a date, a timestamp, a time of day or a duration."""
    return bool(
        pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind)
    )


def to_microseconds(array: Any, column: str, unit: str | None = None) -> Any:
    """Returns an int64 array of microseconds, null where `array` is null.

    array: a flat pyarrow Array of times, or of integers with their `unit` (s, ms, us, ns). Raises InvalidInput naming
    the column and the value that does not fit.
    """
    kind = array.type
    if unit is None:
        unit = "day" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit
        array = array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    valid = None if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
    values = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    if unit == "ns":
        low, high = (-(2**63), 2**63 - 1)
    else:
        low, high = -(2**63 // _FACTORS[unit]), (2**63 - 1) // _FACTORS[unit]
    wrong = values > high if values.dtype.kind == "u" else (values < low) | (values > high)
    if wrong.any():
        raise InvalidInput(
            f"column {column!r}: the time {values[wrong][0]} ({_name(unit)}) does not fit 64 bits of microseconds; "
            "correct it, or set it to null",
            field=column,
        )
    values = values.astype(np.int64)
    values = np.floor_divide(values, _NANOSECONDS) if unit == "ns" else values * _FACTORS[unit]
    return pa.array(values, pa.int64(), mask=None if valid is None else ~valid)


def _name(unit: str) -> str:
    return {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds", "day": "days"}[unit]
