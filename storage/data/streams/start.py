"""Says where a stream begins of which a run has no position."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Literal

from storage.errors import ConfigError
from storage.features.strict_model import did_you_mean

#: With the oldest event that is there, behind the newest, or with those of a time in milliseconds since 1970.
Start = Literal["earliest", "latest"] | int

#: How far the clocks may differ by which brokers and files, and the events in them, have their times.
CLOCKS_MS = 60_000


def start_of(value: str | datetime | float) -> Start:
    """Reads a start: earliest, latest, a moment, its text in ISO 8601 (in UTC where it names no zone), or seconds since
    1970. Raises ConfigError.
    """
    if isinstance(value, str) and value in ("earliest", "latest"):
        return value  # type: ignore[return-value]
    if isinstance(value, str):
        try:
            value = float(value) if value.replace(".", "", 1).isdecimal() else datetime.fromisoformat(value)
        except ValueError:
            raise ConfigError(
                f"start is {value!r}, expected earliest, latest, or a time such as 2026-11-27T10:00:00Z"
                f"{did_you_mean(str(value), ('earliest', 'latest')).partition('; known')[0]}",
                field="start",
            ) from None
    if isinstance(value, datetime):
        value = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()
    if not (math.isfinite(value) and 0.0 <= value < 2.0**33):
        raise ConfigError(f"start is {value}, expected seconds since 1970", field="start")
    return round(value * 1000)
