"""Finds what the values of an Arrow column mean, whatever their width, to compare training with later data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from storage.features.dtypes import ColumnType

if TYPE_CHECKING:
    from storage.features.feature import InputSpec


def column_type_of(kind: Any, spec: InputSpec) -> ColumnType | None:
    """Returns the type of a column that feeds `spec`, or of a list's values; None for a column of nulls only.

    kind: an Arrow type that `column_from_arrow` takes. Integers of an input with a declared unit are timestamps.
    """
    if isinstance(kind, pa.ExtensionType):
        kind = kind.storage_type
    while pa.types.is_dictionary(kind) or is_list(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return None
    if pa.types.is_integer(kind):
        return "integer" if spec.unit is None else "timestamp"
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_time(kind):
        return "time"
    return "duration" if pa.types.is_duration(kind) else "string"


def is_list(kind: Any) -> bool:
    """Returns whether an Arrow type is one of the list types."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def means_the_same(trained: ColumnType, found: ColumnType) -> bool:
    """Returns whether data of type `found` fits training with `trained`: the same type, or integers for floats."""
    return found == trained or (trained == "float" and found == "integer")
