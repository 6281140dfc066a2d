"""Converts the values of partitions, which are text in a path, to columns of the type that their input needs.

An input of strings gets the text as it is. One of integers gets integers, or dates (`date=2026-01-01`) where every
value is one; one of floats gets numbers. A label gets a number, and a column that is only copied is text.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from storage.data.files import DataFile
from storage.errors import ConfigError
from storage.features import InputSpec
from storage.features.dtypes import FLOATS, TIME_DTYPES

_INTEGER = re.compile(r"[+-]?\d{1,20}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def partition_types(files: Sequence[DataFile], wanted: Mapping[str, InputSpec | None]) -> dict[str, Any]:
    """Returns the Arrow type of each partition key that is in `wanted`, the same for all files.

    wanted: the inputs by the column that feeds them, None for a column that is copied as text. Raises a ConfigError
    that names the file whose partition does not fit.
    """
    keys = {key for file in files for key, _ in file.partition}
    return {key: _type_of(key, files, wanted[key]) for key in wanted if key in keys}


def partition_array(file: DataFile, key: str, kind: Any, rows: int) -> Any:
    """Returns the column of a partition: its one value, `rows` times."""
    return pa.repeat(pa.scalar(_value(dict(file.partition)[key], kind), kind), rows)


def _type_of(key: str, files: Sequence[DataFile], spec: InputSpec | None) -> Any:
    if spec is None or spec.dtype == "BYTES":
        return pa.string()
    values = [text for file in files if (text := dict(file.partition).get(key)) is not None]
    if values and spec.dtype in TIME_DTYPES and all(_DATE.fullmatch(text) for text in values):
        return _checked(key, files, pa.date32(), spec)
    return _checked(key, files, pa.float64() if spec.dtype in FLOATS else pa.int64(), spec)


def _checked(key: str, files: Sequence[DataFile], kind: Any, spec: InputSpec) -> Any:
    for file in files:
        if key not in dict(file.partition):
            continue
        try:
            pa.scalar(_value(dict(file.partition)[key], kind), kind)
        except (ValueError, OverflowError, pa.ArrowException):
            raise ConfigError(
                f"{file.path}: the partition {key}={dict(file.partition)[key]} feeds the input {spec.name!r} of dtype "
                f"{spec.dtype}; expected {kind}, as other values of {key!r} are",
                field=f"inputs.{spec.name}.dtype",
            ) from None
    return kind


def _value(text: str | None, kind: Any) -> Any:
    if text is None or pa.types.is_string(kind):
        return text
    if pa.types.is_date(kind):
        return datetime.date.fromisoformat(text)
    if pa.types.is_floating(kind):
        return float(text)
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)
