"""Reads the time of a batch from a column of its rows."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import ConfigError

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def check_time_column(schema: Any, name: str) -> None:
    """Raises ConfigError for a column of a pyarrow schema that is no time and no number."""
    kind = schema.field(name).type
    is_time = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or is_time):
        raise ConfigError(
            f"training.time_column: the column {name!r} is {kind}, expected seconds as a number, a timestamp or a date",
            field="training.time_column",
        )


def newest_seconds(column: Any) -> float | None:
    """Returns the newest time in a column, in seconds since 1970 for timestamps and dates; None without any."""
    newest = pc.max(column)
    if not newest.is_valid:
        return None
    if pa.types.is_timestamp(newest.type):
        return float(newest.value) / _UNITS[newest.type.unit]
    if pa.types.is_date(newest.type):
        return float(newest.cast(pa.timestamp("s")).value)
    value = float(newest.as_py())
    return value if math.isfinite(value) else None
