"""Reads Parquet files as one long sequence of rows, a row group at a time and only the columns that are needed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.data.columns import ColumnCheck, Wanted, in_type
from storage.data.files import DataFile, DataPath, find_files
from storage.data.partitions import partition_array, partition_types
from storage.errors import ConfigError, InvalidInput
from storage.features import InputSpec
from storage.features.dtypes import ColumnType


@dataclass(frozen=True)
class RowGroup:
    """Rows of one row group of a file."""

    file: DataFile
    #: The number of the row group in the file.
    index: int
    #: The rows of the group that come before those of the data.
    skip: int
    #: The rows of the group that belong to the data.
    rows: int

    def read(self, schema: Any) -> Any:
        """Reads the rows as a pyarrow Table with the columns and types of `schema`.

        Raises an InvalidInput that names the file.
        """
        try:
            with pq.ParquetFile(self.file.path) as file:
                own = [name for name in schema.names if name in file.schema_arrow.names]
                table = file.read_row_group(self.index, columns=own, use_threads=False)
            table = table.slice(self.skip, self.rows)
            columns = [
                in_type(table.column(entry.name), entry.type, entry.name)
                if entry.name in own
                else pa.chunked_array([partition_array(self.file, entry.name, entry.type, self.rows)])
                for entry in schema
            ]
        except (OSError, pa.ArrowException, InvalidInput) as error:
            raise InvalidInput(
                f"{self.file.path}: row group {self.index} cannot be read: {error}", field="data"
            ) from error
        return pa.table(columns, schema=schema)


@dataclass(frozen=True)
class DataRows:
    """The rows of some files, in the order of their paths."""

    groups: tuple[RowGroup, ...]
    #: The pyarrow schema of the columns that are read.
    schema: Any
    fingerprint: str
    #: The column types of the inputs whose spec did not give it, by input.
    column_types: Mapping[str, ColumnType] = field(default_factory=dict)

    @classmethod
    def open(cls, data: DataPath, wanted: Wanted) -> DataRows:
        """Finds the files (a folder means those in it and in its Hive partitions) and checks their columns.

        Raises ConfigError for data that is not Parquet, and for a column that is missing, has a type that cannot feed
        its input, has another type than in training, or has types in several files that do not go together.
        """
        files = find_files(data)
        check = ColumnCheck(wanted, partition_types(files, _by_column(wanted)))
        groups: list[RowGroup] = []
        digest = hashlib.sha256()
        for entry in files:
            try:
                size = entry.path.stat().st_size
                if size == 0:
                    raise ConfigError(f"{entry.path}: is empty (0 bytes); write it again, or remove it", field="data")
                with pq.ParquetFile(entry.path) as file:
                    schema = file.schema_arrow
                    sizes = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
            except (OSError, pa.ArrowException) as error:
                raise ConfigError(f"{entry.path}: not a readable Parquet file: {error}", field="data") from error
            check.add(entry.path, schema)
            groups += [RowGroup(entry, index, 0, rows) for index, rows in enumerate(sizes) if rows]
            digest.update(f"{entry.name}:{size}:{sizes};".encode())
        return cls(tuple(groups), check.schema(), digest.hexdigest(), check.column_types)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(group.rows for group in self.groups)

    def range(self, start: int, stop: int) -> DataRows:
        """Returns the rows from `start` to before `stop`; bounds outside of the data are cut."""
        kept: list[RowGroup] = []
        at = 0
        for group in self.groups:
            first, last = max(start - at, 0), min(stop - at, group.rows)
            if first < last:
                kept.append(replace(group, skip=group.skip + first, rows=last - first))
            at += group.rows
        fingerprint = hashlib.sha256(f"{self.fingerprint}[{start}:{stop}]".encode()).hexdigest()
        return replace(self, groups=tuple(kept), fingerprint=fingerprint)

    def read(self) -> Any:
        """Reads all rows as one pyarrow Table; use it for small parts only."""
        if not self.groups:
            raise InvalidInput("the data has no rows", field="data")
        return pa.concat_tables([group.read(self.schema) for group in self.groups])

    def batches(self, batch_rows: int) -> Iterator[Any]:
        """Yields the rows in order as pyarrow RecordBatches of at most `batch_rows`, with one row group in memory."""
        for group in self.groups:
            yield from group.read(self.schema).combine_chunks().to_batches(max_chunksize=batch_rows)


def _by_column(wanted: Wanted) -> dict[str, InputSpec | None]:
    columns: dict[str, InputSpec | None] = dict.fromkeys(wanted.keep)
    if wanted.label is not None:
        columns[wanted.label] = InputSpec(name="label", dtype="BYTES" if wanted.label_is_text else "INT64")
    return columns | {entry.source: entry for entry in wanted.inputs}
