"""Writes rows of any format as one Parquet file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.data.options import DataOptions, arrow_type
from storage.data.rows import DataRows, SkippedFile
from storage.data.sources import Data
from storage.errors import ConfigError, StoreError
from storage.features.strict_model import did_you_mean
from storage.paths import local_path

ROW_GROUP_ROWS = 131_072


@dataclass(frozen=True)
class ConvertReport:
    """A file that was written."""

    path: Path
    rows: int
    bytes: int
    #: Damaged files that were left out, where `on_damaged` is `skip`.
    skipped: tuple[SkippedFile, ...]


def convert(
    data: Data,
    target: Path | str,
    options: DataOptions | None = None,
    *,
    row_group_rows: int = ROW_GROUP_ROWS,
    progress: Callable[[int, int], None] | None = None,
) -> ConvertReport:
    """Writes all columns of the data to the Parquet file `target`, which appears when it is complete.

    `options.types` gives columns other types, of any format; columns of text without one have the type that the rows of
    their file suggest. progress: called with the rows so far and the rows in all. Raises ConfigError and
    InvalidInput as reading does, StoreError when the file cannot be written.
    """
    target = local_path(target, "target")
    options = options or DataOptions()
    rows = _typed(DataRows.open(data, None, options), options)
    # `hidden` for readers of the folder, so that nobody takes it for data
    unfinished = target.with_name(f".{target.name}.part")
    done = 0
    try:
        with pq.ParquetWriter(unfinished, rows.schema) as writer:
            for table in _groups(rows, row_group_rows):
                writer.write_table(table, row_group_size=row_group_rows)
                done += table.num_rows
                if progress is not None:
                    progress(done, rows.rows)
        size = unfinished.stat().st_size
        unfinished.replace(target)
    except OSError as error:
        raise StoreError(
            f"{target}: cannot be written after {done:,} of {rows.rows:,} rows: {error.strerror or error}. Nothing is "
            "left of it; make room, or give another place"
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return ConvertReport(target, done, size, rows.skipped)


def _typed(rows: DataRows, options: DataOptions) -> DataRows:
    """Returns the rows with the types that the options give."""
    schema = rows.schema
    for name, kind in options.types.items():
        place = schema.get_field_index(name)
        if place < 0:
            raise ConfigError(
                f"data.types: there is no column {name!r}{did_you_mean(name, schema.names)}", field="data.types"
            )
        schema = schema.set(place, pa.field(name, arrow_type(kind)))
    return replace(rows, schema=schema)


def _groups(rows: DataRows, size: int) -> Iterator[Any]:
    """Yields tables of `size` rows, the last one with what is left."""
    left: list[Any] = []
    count = 0
    for block in rows.blocks:
        left.append(block.read(rows.schema))
        count += block.rows
        if count >= size:
            table = pa.concat_tables(left)
            whole = count - count % size
            yield table.slice(0, whole)
            left, count = [table.slice(whole)], count - whole
    if count:
        yield pa.concat_tables(left)
