"""Finds the files that are given as data: paths, URLs and patterns of them, and tables in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from storage.data.files import DataFile, DataPath, find_files
from storage.data.options import DataOptions
from storage.data.places import Place, without_secrets
from storage.errors import ConfigError

#: Paths, or a pyarrow Table, a pandas or polars DataFrame, or another object with Arrow's C stream.
Data = DataPath | Any


def is_table(data: Data) -> bool:
    """Returns whether data is in memory already."""
    return isinstance(data, pa.Table | pa.RecordBatch) or _is_pandas(data) or hasattr(data, "__arrow_c_stream__")


def data_files(data: Data, options: DataOptions) -> list[DataFile]:
    """Returns the files that the data means, in order; a table in memory counts as a file. Raises ConfigError."""
    if not is_table(data):
        _check_paths(data)
        return find_files(data, options)
    try:
        if _is_pandas(data):
            table = pa.Table.from_pandas(data, preserve_index=False)
        elif isinstance(data, pa.RecordBatch):
            table = pa.Table.from_batches([data])
        else:
            table = data if isinstance(data, pa.Table) else pa.table(data)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ConfigError(f"data: a {type(data).__name__} that is no table of Arrow: {error}", field="data") from error
    place = Place(fs.LocalFileSystem(), f"table-{_digest(table)}", "the table")
    return [DataFile(place, "memory", table.nbytes, table=table)]


def described(data: Data) -> list[str]:
    """Returns what was given as data, for reports: paths and URLs without passwords, or the rows of a table."""
    if is_table(data):
        return [f"a {type(data).__name__} in memory"]
    return [without_secrets(entry) for entry in ([data] if isinstance(data, Path | str) else data)]


def _check_paths(data: Any) -> None:
    entries = [data] if isinstance(data, Path | str) else data
    if not isinstance(entries, Sequence) or not all(isinstance(entry, Path | str) for entry in entries):
        raise ConfigError(
            f"data: expected paths, a pyarrow Table or a DataFrame, got {type(data).__name__}", field="data"
        )


def _is_pandas(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


class _Hash:
    """A sink of bytes that keeps their digest alone."""

    closed = False

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _digest(table: Any) -> str:
    """Returns a digest of the columns and values, by which a resumed run knows its data."""
    sink = _Hash()
    plain = table.replace_schema_metadata(None)
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), plain.schema) as writer:
        writer.write_table(plain)
    return sink.digest.hexdigest()[:32]
