"""Parquet files with a column of ids and a column of rows, which are lists of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import InvalidInput
from storage.importing.arrays import as_counts
from storage.importing.files import files_of
from storage.importing.kinds.base import Kind, named_paths
from storage.importing.options import ImportOptions, pick
from storage.importing.source import Block, FileTable, as_ids, as_rows, check_dim, rows_at_once

_IDS_AT_ONCE = 1 << 20
_BUFFER_BYTES = 1 << 20
#: What pyarrow raises for a file that is damaged, in its names too.
DAMAGED = (pa.ArrowException, OSError, UnicodeDecodeError)


def open_files(paths: Sequence[Path], options: ImportOptions) -> list[FileTable]:
    """Returns the tables of files: a table for each path, its parts in a folder."""
    return [
        _table(
            name, [file for place in places for file in files_of(place, [".parquet"], what="Parquet files")], options
        )
        for name, places in named_paths(paths, options).items()
    ]


def _table(name: str, files: Sequence[Path], options: ImportOptions) -> FileTable:
    rows = 0
    for file in files:
        with opened(file) as parquet:
            rows += parquet.metadata.num_rows
            columns = columns_of(parquet, file, {"id": options.id or "id", "row": options.row or "row"})
            if options.count:
                columns += columns_of(parquet, file, {"count": options.count})
    dim = options.dim(name) or _first_dim(name, files, columns[1])
    check_dim(dim, what=f"table {name!r}, {files[0]}")

    def blocks() -> Iterator[Block]:
        for file in files:
            what = f"table {name!r}, {file}"
            with opened(file) as parquet:
                for batch in batches(parquet, file, rows_at_once(dim), columns):
                    found = as_ids(integers(batch.column(0), what=what), what=what)
                    values = as_rows(list_values(batch.column(1), dim, found, what=what), dim, what=what)
                    counts = as_counts(integers(batch.column(2), what=what), what=what) if options.count else None
                    yield Block(found, values, str(file), counts)

    def ids() -> Iterator[np.ndarray]:
        for file in files:
            with opened(file) as parquet:
                for batch in batches(parquet, file, _IDS_AT_ONCE, columns[:1]):
                    yield as_ids(integers(batch.column(0), what=str(file)), what=str(file))

    says_absent = options.default(name) is not None
    return FileTable(name, dim, blocks, ids, rows, absent=options.absent(name), says_absent=says_absent)


def opened(file: Path) -> pq.ParquetFile:
    """Opens a file. Raises InvalidInput for one that is no Parquet file or is cut off."""
    try:
        # Without a buffer a column of a row group, which may be the whole file, lies in memory.
        return pq.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES, page_checksum_verification=True)
    except DAMAGED as error:
        if "decrypt" in str(error):
            raise InvalidInput(f"{file}: is encrypted, and its keys are not asked for; write it without") from None
        raise InvalidInput(f"{file}: is no Parquet file, or it is cut off: {error}") from None


def batches(parquet: pq.ParquetFile, file: Path, rows: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields some columns in blocks. Raises InvalidInput naming the file for one that is damaged."""
    try:
        for batch in parquet.iter_batches(rows, columns=list(columns), use_threads=False):
            yield batch.select(list(columns))
    except DAMAGED as error:
        raise InvalidInput(f"{file}: cannot be read: {error}") from None


def columns_of(parquet: pq.ParquetFile, file: Path, wanted: dict[str, str]) -> list[str]:
    """Returns the columns by option after a check that the file has them. Raises InvalidInput."""
    names = parquet.schema_arrow.names
    for name in wanted.values():
        if names.count(name) > 1:
            raise InvalidInput(f"{file}: has {names.count(name)} columns {name!r}")
    return [pick(name, names, option=option, what=str(file)) for option, name in wanted.items()]


def integers(column: pa.Array, *, what: str) -> np.ndarray:
    """Returns a column of numbers. Raises InvalidInput for nulls or another type."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count:
        raise InvalidInput(f"{what}: {column.null_count} nulls where numbers were expected")
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        advice = "hash them to int64 as requests will" if is_text else "cast the column to int64"
        raise InvalidInput(f"{what}: {column.type} where integers were expected; {advice}")
    return np.asarray(column.to_numpy(zero_copy_only=False))


def list_values(column: pa.Array, dim: int, ids: np.ndarray, *, what: str) -> np.ndarray:
    """Returns a column of lists of `dim` numbers as (n, dim). Raises InvalidInput for other lengths, and for nulls."""
    _check_lists(column.type, what)
    if column.null_count:
        raise InvalidInput(f"{what}: {column.null_count} rows are null")
    lengths = np.asarray(column.value_lengths().to_numpy(zero_copy_only=False))
    if (lengths != dim).any():
        bad = int(np.argmax(lengths != dim))
        raise InvalidInput(f"{what}: the row of id {ids[bad]} has {lengths[bad]} values, expected {dim}", field="dim")
    values = column.flatten()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.null_count:
        raise InvalidInput(f"{what}: rows hold nulls")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(column), dim)


def _check_lists(kind: pa.DataType, what: str) -> None:
    """Raises InvalidInput for a type that is no list of numbers."""
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    values = kind.value_type if any(is_kind(kind) for is_kind in lists) else None
    if values is not None and pa.types.is_dictionary(values):
        values = values.value_type
    if values is None or not (pa.types.is_floating(values) or pa.types.is_integer(values)):
        raise InvalidInput(f"{what}: rows are {kind}, expected lists of float16, float32 or float64", field="row")


def _first_dim(name: str, files: Sequence[Path], column: str) -> int:
    for file in files:
        with opened(file) as parquet:
            kind = parquet.schema_arrow.field(column).type
            _check_lists(kind, f"table {name!r}, {file}")
            if pa.types.is_fixed_size_list(kind):
                return int(kind.list_size)
            for batch in batches(parquet, file, 1, [column]):
                first = batch.column(0)[0].as_py()
                if first is None:
                    raise InvalidInput(f"table {name!r}, {file}: the first row is null", field="row")
                return len(first)
    raise InvalidInput(f"table {name!r}: the files hold no row; --dim says how many values one has", field="dim")


KIND = Kind(
    "parquet",
    "Parquet files with a column of ids and one of rows.",
    """Publish tables of Parquet files.

    Each PATH, a file or a folder of parts, is a table of that name; with --table all are parts of one. Ids are
    integers, rows lists of numbers of one length. --count names a column that says how often an id was used.
    """,
    """\b
Examples:
  emberline import parquet users.parquet items/ --id user_id --row embedding --check
  emberline import parquet user=users.parquet item=items/ --repository build/models --name shop
  emberline import parquet a.parquet b.parquet --table item --row-type fp16 --repository build/models --name shop""",
    open_files,
    ("table", "id", "row", "count"),
)
