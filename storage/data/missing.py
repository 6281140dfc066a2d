"""Checks the values that stand for columns which files do not have (`data.missing_columns`)."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa

from storage.data.formats.text_types import may_be_time
from storage.errors import ConfigError
from storage.features.column_types import is_list
from storage.features.times import is_time


def missing_value(column: str, value: Any, kind: Any) -> Any:
    """Returns the value as a pyarrow scalar of `kind`, the type that the column has elsewhere.

    A time is written as in files of text, in UTC where it names no zone. Raises ConfigError for a value of another
    kind: nothing is rounded or cut.
    """
    field = f"data.missing_columns.{column}"
    text = value.isoformat() if isinstance(value, datetime.date) else value
    if is_time(kind) and isinstance(text, str):
        found = _time(text, kind)
        if found is not None:
            return found
    elif _fits(value, kind):
        try:
            return pa.scalar(value, kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            pass
    written = "; write a time as text, such as '2026-01-31 10:00:00'" if is_time(kind) else ""
    raise ConfigError(f"{field}: {value!r} is no {kind}, as the column is{written}", field=field) from None


def kind_of_missing(column: str, value: Any, hint: Any) -> Any:
    """Returns the type of a column that no file has. hint: the type that text is read as; None to infer it."""
    if hint is None:
        return pa.scalar(value).type
    if may_be_time(hint) and (isinstance(value, datetime.date) or (isinstance(value, str) and _time(value, _MOMENT))):
        return _MOMENT
    return hint


_MOMENT = pa.timestamp("us")


def _fits(value: Any, kind: Any) -> bool:
    """Returns whether the value is of the kind of the column, so that Arrow does not change it."""
    if value is None:
        return True
    if is_list(kind):
        return isinstance(value, list | tuple) and all(_fits(element, kind.value_type) for element in value)
    if is_time(kind):
        return isinstance(value, datetime.date | datetime.time | datetime.timedelta)
    if pa.types.is_integer(kind):
        return isinstance(value, int) and not isinstance(value, bool)
    if pa.types.is_floating(kind):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return True


def _time(text: str, kind: Any) -> Any:
    """Returns a time from text as a scalar of `kind`, None where it is none."""
    array = pa.array([text])
    for first in (pa.timestamp("us"), pa.timestamp("us", "UTC"), kind):
        try:
            time = array.cast(first)
            if time.cast(kind).cast(first) == time:  # a date has no hours
                return time.cast(kind)[0]
        except pa.ArrowException:
            continue
    return None
