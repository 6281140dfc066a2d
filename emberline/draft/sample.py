"""Reads a sample of the data, spread over its blocks, and describes each column of it. N rows of the sample."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from emberline.draft.raw_text import Reading, reread
from storage.data import DataOptions, DataPath, DataRows, find_files
from storage.data.columns import plain
from storage.errors import ConfigError
from storage.features.column_types import is_list
from storage.features.nested_arrow import joined_array

Array = np.ndarray[Any, np.dtype[Any]]
Kind = Literal["integer", "float", "boolean", "text", "time", "list", "other"]

_PIECES = 8


@dataclass(frozen=True)
class ColumnSample:
    """The values of a column in the sample, and what follows from them."""

    name: str
    kind: Kind
    #: The Arrow type as the data has it.
    type: Any
    #: The values that are no null, nor NaN; of a list, those of all rows one behind the other.
    values: Any
    #: Rows of the sample.
    rows: int
    #: Rows that are null or NaN.
    nulls: int
    #: Of values that are no null.
    distinct: int
    #: Of a list: the number of values of each row that is no null.
    lengths: Array | None = None

    @property
    def null_share(self) -> float:
        """The share of rows that are null, 0 to 1."""
        return self.nulls / max(self.rows, 1)

    @property
    def present(self) -> int:
        """The number of rows that are no null."""
        return self.rows - self.nulls

    def numbers(self) -> Array:
        """Returns the values as float64."""
        values = self.values.cast(pa.uint8()) if pa.types.is_boolean(self.values.type) else self.values
        return np.asarray(values.to_numpy(zero_copy_only=False)).astype(np.float64)


def read_sample(
    data: DataPath | list[Any], options: DataOptions, rows: int, labels: Collection[str]
) -> tuple[Reading, int]:
    """Returns at most `rows` rows, spread over the data, and how many rows the data has.

    Raises ConfigError for data that cannot be read, or has no rows.
    """
    try:
        everything = DataRows.open(data, None, options)
    except ConfigError as error:
        found = _other_delimiter(data, options)
        if found is None:
            raise
        raise ConfigError(f"{error}; is there another delimiter? add {found}", field=error.field) from None
    total = everything.rows
    if total == 0:
        raise ConfigError(f"{_named(data)}: the data has no rows; give more data", field="data")
    size = max(rows // _PIECES, 1)
    starts = np.linspace(0, total - size, min(_PIECES, rows)).astype(int).tolist()
    pieces = [everything] if total <= rows else [everything.range(start, start + size) for start in starts]
    table = pa.concat_tables([piece.read() for piece in pieces])
    if any(block.file.format not in ("csv", "tsv") for block in everything.blocks):
        return Reading(table, options), total
    blocks = tuple(block for piece in pieces for block in piece.blocks)
    return reread(table, replace(everything, blocks=blocks), options, labels), total


def delimiter_option(line: str) -> str | None:
    """Returns the option for the delimiter of a line that no comma parts; None where no other sign is in it."""
    found = next((sign for sign in ("\t", ";", "|") if sign in line), None)
    if found is None or "," in line:
        return None
    return "--delimiter $'\\t'" if found == "\t" else f"--delimiter '{found}'"


def _other_delimiter(data: DataPath | list[Any], options: DataOptions) -> str | None:
    try:
        first = find_files(data, options)[0]
        if options.delimiter is not None or first.format not in ("csv", "tsv"):
            return None
        with first.place.open() as file:
            line = bytes(file.read(1 << 16)).partition(b"\n")[0].decode(errors="replace")
    except (ConfigError, OSError):
        return None
    return None if "\0" in line else delimiter_option(line)


def _named(data: DataPath | list[Any]) -> str:
    return ", ".join(map(str, data)) if isinstance(data, list) else str(data)


def describe(table: Any) -> list[ColumnSample]:
    """Returns the columns of a sample in their order."""
    return [_describe(name, table.field(name).type, plain_column(table, name)) for name in table.column_names]


def plain_column(table: Any, name: str) -> Any:
    """Returns a column as one pyarrow Array, without dictionaries and views."""
    column = table.column(name)
    kind = plain(column.type)
    whole = (column if kind == column.type else column.cast(kind)).combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def _describe(name: str, given: Any, whole: Any) -> ColumnSample:
    whole = joined_array(whole)
    kind = whole.type
    what = kind_of(kind)
    lengths = None
    nulls = whole.null_count
    values = whole.drop_null()
    if what == "list":
        lengths = np.asarray(pc.list_value_length(values).to_numpy(zero_copy_only=False)).astype(np.int64)
        values = values.flatten().drop_null()
    elif what == "float":
        numbers = values.filter(pc.invert(pc.is_nan(values)))
        nulls, values = nulls + len(values) - len(numbers), numbers
    distinct = 0 if what == "other" else len(pc.unique(values))
    return ColumnSample(name, what, given, values, len(whole), nulls, distinct, lengths)


def kind_of(kind: Any) -> Kind:
    """Returns what the values of a plain Arrow type are."""
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return "float"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "time"
    if is_list(kind) and kind_of(plain(kind.value_type)) in ("integer", "text", "float"):
        return "list"
    return "other"
