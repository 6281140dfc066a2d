"""Parquet files as one long run of rows, read a row group at a time and only in the columns that are needed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import ConfigError, InvalidInput
from storage.features import Column, FeatureSpec
from storage.features.strict_model import did_you_mean
from storage.paths import local_path

DataPath = Path | str | Sequence[Path | str]


@dataclass(frozen=True)
class RowGroup:
    """Some rows that lie together in a file. skip and rows: which of the group's rows belong to the data."""

    path: Path
    index: int
    skip: int
    rows: int

    def read(self, columns: Sequence[str]) -> Any:
        """The rows as a pyarrow Table. Raises InvalidInput when the file cannot be read."""
        try:
            with pq.ParquetFile(self.path) as file:
                table = file.read_row_group(self.index, columns=list(columns), use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise InvalidInput(f"{self.path}: row group {self.index} cannot be read: {error}", field="data") from error
        return table.slice(self.skip, self.rows)


@dataclass(frozen=True)
class ParquetRows:
    """The rows of some files, in the order of their names. columns: what is read of them."""

    groups: tuple[RowGroup, ...]
    columns: tuple[str, ...]
    fingerprint: str

    @classmethod
    def open(cls, data: DataPath, spec: FeatureSpec, label: str | None) -> ParquetRows:
        """Finds the files (a folder stands for its *.parquet) and checks their columns.

        Raises ConfigError when there is no file, or a column is missing or of a type that cannot feed its input.
        """
        columns = tuple(dict.fromkeys([entry.source for entry in spec.inputs] + ([] if label is None else [label])))
        groups: list[RowGroup] = []
        digest = hashlib.sha256()
        for path in find_files(data):
            try:
                with pq.ParquetFile(path) as file:
                    _check_schema(path, file.schema_arrow, spec, label)
                    sizes = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
            except (OSError, pa.ArrowException) as error:
                raise ConfigError(f"{path}: not a readable Parquet file: {error}", field="data") from error
            groups += [RowGroup(path, index, 0, rows) for index, rows in enumerate(sizes) if rows]
            digest.update(f"{path.name}:{path.stat().st_size}:{sizes};".encode())
        return cls(tuple(groups), columns, digest.hexdigest())

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(group.rows for group in self.groups)

    def range(self, start: int, stop: int) -> ParquetRows:
        """The rows `start` to `stop` (left out); bounds outside are cut."""
        kept: list[RowGroup] = []
        at = 0
        for group in self.groups:
            first, last = max(start - at, 0), min(stop - at, group.rows)
            if first < last:
                kept.append(replace(group, skip=group.skip + first, rows=last - first))
            at += group.rows
        fingerprint = hashlib.sha256(f"{self.fingerprint}[{start}:{stop}]".encode()).hexdigest()
        return ParquetRows(tuple(kept), self.columns, fingerprint)

    def read(self) -> Any:
        """All rows as one pyarrow Table; for small parts only."""
        if not self.groups:
            raise InvalidInput("the data has no rows", field="data")
        return pa.concat_tables([group.read(self.columns) for group in self.groups])


def find_files(data: DataPath) -> list[Path]:
    """The Parquet files behind a path or several. Raises ConfigError when a path leads to none."""
    found: list[Path] = []
    for entry in [data] if isinstance(data, Path | str) else data:
        path = local_path(entry, "data")
        if path.is_dir():
            inside = sorted(path.glob("*.parquet"))
            if not inside:
                raise ConfigError(f"{path}: the folder holds no *.parquet file", field="data")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise ConfigError(f"{path}: there is no such file or folder", field="data")
    if not found:
        raise ConfigError("no data was given; name Parquet files or a folder of them", field="data")
    return found


def _check_schema(path: Path, schema: Any, spec: FeatureSpec, label: str | None) -> None:
    names = list(schema.names)
    exist = f"; the file has: {', '.join(f'{field.name} ({field.type})' for field in schema)}"
    for entry in spec.inputs:
        if entry.source not in names:
            near = did_you_mean(entry.source, names).partition("; known")[0]
            raise ConfigError(
                f"{path}: input {entry.name!r} wants the column {entry.source!r}, which is not there{near}{exist}",
                field=f"inputs.{entry.name}.column",
            )
        try:
            Column.from_arrow(pa.array([], schema.field(entry.source).type), entry)
        except InvalidInput as error:
            raise ConfigError(f"{path}: {error}{exist}", field=f"inputs.{entry.name}.dtype") from None
    if label is None:
        return
    if label not in names:
        raise ConfigError(f"{path}: there is no label column {label!r}{exist}", field="label")
    kind = schema.field(label).type
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ConfigError(f"{path}: the label column {label!r} is {kind}, expected 0 and 1{exist}", field="label")
