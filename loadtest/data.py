"""Reads rows of Parquet files, or of a folder of them with Hive partitions, in the order of their paths."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_SUFFIXES = frozenset({".parquet", ".parq", ".pq"})
# Microseconds in one unit; nanoseconds are divided instead.
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "day": 86_400_000_000}


def read_columns(data: Path, dtypes: Mapping[str, str], rows: int) -> pa.Table:
    """Returns the first `rows` rows with the columns in `dtypes`, which maps a column to the datatype of its input.

    Values of partitions are text and are converted to the datatype. Raises ValueError naming a missing column or a file
    that is no Parquet, OSError.
    """
    tables: list[pa.Table] = []
    left = rows
    for path, partition in _files(data, _partitions_of(data if data.is_dir() else data.parent)):
        with pq.ParquetFile(path) as file:
            own = set(file.schema_arrow.names)
            missing = [name for name in dtypes if name not in own and name not in partition]
            if missing:
                raise ValueError(f"{path} has no column {missing}; its columns are {sorted(own | set(partition))}")
            for batch in file.iter_batches(columns=[name for name in dtypes if name in own]):
                part = batch.slice(0, left)
                arrays = [
                    part.column(name) if name in own else _repeated(partition[name], dtypes[name], part.num_rows)
                    for name in dtypes
                ]
                tables.append(pa.table(arrays, list(dtypes)))
                left -= part.num_rows
                if left <= 0:
                    return _joined(tables)
    return _joined(tables)


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


def _joined(tables: list[pa.Table]) -> pa.Table:
    if not tables:
        return pa.table({})
    return pa.concat_tables(tables, promote_options="permissive")


def _files(path: Path, partition: dict[str, str]) -> Iterator[tuple[Path, dict[str, str]]]:
    if not path.is_dir():
        with path.open("rb") as file:
            if path.suffix.lower() not in _SUFFIXES and file.read(4) != b"PAR1":
                raise ValueError(f"{path} is no Parquet file; convert it, or move it away")
        yield path, partition
        return
    entries = sorted(
        entry for entry in path.iterdir() if not entry.name.startswith((".", "_")) and entry.suffix != ".crc"
    )
    if not entries:
        raise ValueError(f"{path} holds no Parquet file")
    for entry in entries:
        if not entry.is_dir():
            yield from _files(entry, partition)
            continue
        key, equals, value = entry.name.partition("=")
        if not equals:
            raise ValueError(f"{entry} is a folder and no partition, which would be called KEY=VALUE")
        yield from _files(entry, {**partition, unquote(key): value})


def _partitions_of(folder: Path) -> dict[str, str]:
    """Returns the partitions that the end of a path leads into."""
    found: dict[str, str] = {}
    for part in reversed(folder.absolute().parts):
        key, equals, value = part.partition("=")
        if not equals:
            break
        found[unquote(key)] = value
    return found


def _repeated(text: str, dtype: str, rows: int) -> pa.Array:
    value: Any = None if text == _NULL else unquote(text)
    if dtype == "BYTES" or value is None:
        return pa.repeat(pa.scalar(value, pa.string()), rows)
    kind = pa.date32() if _DATE.fullmatch(value) else pa.float64() if dtype.startswith("FP") else pa.int64()
    return pa.repeat(pa.scalar(value, pa.string()).cast(kind), rows)
