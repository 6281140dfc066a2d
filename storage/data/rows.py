"""Reads files of rows as one long sequence, a block of rows at a time and only the columns that are needed."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pyarrow as pa

from storage.data.columns import ColumnCheck, Wanted, in_type
from storage.data.files import FORMAT_TITLES, TEXT_FORMATS, DataFile
from storage.data.formats import FORMATS, Block
from storage.data.formats.base import Content
from storage.data.index import BlockIndex
from storage.data.missing import missing_value
from storage.data.options import DataOptions
from storage.data.partitions import partition_array, partition_types
from storage.data.sources import Data, data_files
from storage.errors import ConfigError, InvalidInput
from storage.features import InputSpec
from storage.features.dtypes import ColumnType


@dataclass(frozen=True)
class RowBlock:
    """Rows of one block of a file."""

    file: DataFile
    block: Block
    #: The rows of the block that come before those of the data.
    skip: int
    #: The rows of the block that belong to the data.
    rows: int
    #: The columns of the file that are read, with their types in it.
    own: Any
    options: DataOptions

    def read(self, schema: Any) -> Any:
        """Reads the rows as a pyarrow Table with the columns and types of `schema`.

        Raises an InvalidInput that names the file, and the line of text or the block.
        """
        file_format = FORMATS[self.file.format]
        try:
            table = file_format.read(self.file, self.options, self.block, self.own)
            if table.num_rows != self.block.rows:
                raise InvalidInput(f"has {table.num_rows} rows, expected {self.block.rows}; it was changed")
            table = table.slice(self.skip, self.rows)
            columns = [self._column(table, entry) for entry in schema]
        except (OSError, pa.ArrowException, InvalidInput) as error:
            block = file_format.place_of(self.file, self.options, self.block, -1)
            where = "" if _names_its_place(error) else f"{block} cannot be read: "
            raise InvalidInput(f"{self.file.path}: {where}{error}", field="data") from error
        return pa.table(columns, schema=schema)

    def only(self, names: Collection[str]) -> Self:
        """Returns the same rows, of which `read` reads some columns."""
        kept = [entry for entry in self.own if entry.name in names]
        return replace(self, own=pa.schema(kept or list(self.own)[:1]))  # a file knows its rows by a column

    def place_of(self, row: int) -> str:
        """Returns the file and the row or line of a row of this block, counted from 0, for people."""
        place = FORMATS[self.file.format].place_of(self.file, self.options, self.block, self.skip + row)
        return f"{self.file.path}: {place}"

    def _column(self, table: Any, entry: Any) -> Any:
        if entry.name in self.own.names:
            return in_type(table.column(entry.name), entry.type, entry.name)
        if entry.name in dict(self.file.partition):
            return pa.chunked_array([partition_array(self.file, entry.name, entry.type, self.rows)])
        value = missing_value(entry.name, self.options.missing_columns[entry.name], entry.type)
        return pa.chunked_array([pa.repeat(value, self.rows)])


@dataclass(frozen=True)
class SkippedFile:
    """A damaged file that was left out."""

    path: str
    reason: str


@dataclass(frozen=True)
class DataRows:
    """The rows of some files, in the order of their paths."""

    blocks: tuple[RowBlock, ...]
    #: The pyarrow schema of the columns that are read.
    schema: Any
    fingerprint: str
    #: The column types of the inputs whose spec did not give it, by input.
    column_types: Mapping[str, ColumnType] = field(default_factory=dict)
    #: Damaged files, where they are left out and are no error.
    skipped: tuple[SkippedFile, ...] = ()
    options: DataOptions = field(default_factory=DataOptions)

    @classmethod
    def open(
        cls, data: Data, wanted: Wanted | None, options: DataOptions | None = None, index: BlockIndex | None = None
    ) -> DataRows:
        """Finds the files (a folder means those in it and in its Hive partitions) and checks their columns.

        data: paths, URLs, patterns, or a table in memory. wanted: None for every column. index: where blocks are
        remembered. Raises ConfigError for a file of an unknown format, and for a column that is missing, has a type
        that cannot feed its input, has another type than in training, or has types in several files that do not go
        together.
        """
        options = options or DataOptions()
        return cls.of_files(data_files(data, options), wanted, options, index)

    @classmethod
    def of_files(
        cls,
        files: Sequence[DataFile],
        wanted: Wanted | None,
        options: DataOptions,
        index: BlockIndex | None = None,
        *,
        may_be_empty: bool = False,
    ) -> DataRows:
        """Opens files that were found already, as `open` does. may_be_empty: files of text may hold the names of
        columns and no row; if all do, the schema is empty too.
        """
        if index is not None:
            files = [index.in_any_order(file) for file in files]
        everything = wanted is None
        wanted = _every_column(files, options, index) if wanted is None else wanted
        check = ColumnCheck(wanted, partition_types(files, _by_column(wanted)), missing=options.missing_columns)
        blocks: list[RowBlock] = []
        skipped: list[SkippedFile] = []
        encoded: list[Mapping[str, Any]] = []
        untyped: list[tuple[str, Any]] = []  # files of text with the names of columns and no row, which show no types
        digest = hashlib.sha256()
        for entry in files:
            try:
                content = _content(entry, options, check.hints(), index)
            except ConfigError as error:
                if options.on_damaged == "fail":
                    raise
                skipped.append(SkippedFile(entry.path, str(error)))
                continue
            schema = content.schema
            own = pa.schema([schema.field(name) for name in check.hints() if schema.names.count(name) == 1])
            parts = [RowBlock(entry, block, 0, block.rows, own, options) for block in content.blocks if block.rows]
            if options.on_damaged == "skip" and (reason := _damage(parts)):
                skipped.append(SkippedFile(entry.path, reason))
                continue
            if parts or entry.format not in TEXT_FORMATS:
                check.add(entry.path, schema)
                encoded.append(content.encoded)
            else:
                untyped.append((entry.path, schema))
            if everything and (more := sorted(set(schema.names) - set(wanted.keep))):
                raise ConfigError(
                    f"{entry.path}: has the column {more[0]!r}, which {files[0].path} has not; expected the same "
                    "columns in every file",
                    field="data",
                )
            blocks += parts
            digest.update(f"{entry.name}:{entry.size}:{[block.rows for block in content.blocks]};".encode())
        if files and len(skipped) == len(files):
            raise ConfigError(f"every file is damaged; the first: {skipped[0].reason}", field="data")
        if untyped and may_be_empty and not check.found:
            return cls((), pa.schema([]), digest.hexdigest(), options=options)
        if untyped and not check.found and not everything:
            raise ConfigError(
                f"{untyped[0][0]}: holds the names of columns and no row; give data with rows", field="data"
            )
        for path, schema in untyped:
            check.add(path, _in_types(schema, {name: kind for name, (kind, _) in check.found.items()}))
        types = _encoded_types(encoded, wanted)
        return cls(
            tuple(replace(block, own=_in_types(block.own, types)) for block in blocks),
            _in_types(check.finish(), types),
            digest.hexdigest(),
            check.column_types,
            tuple(skipped),
            options,
        )

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(block.rows for block in self.blocks)

    @property
    def are_in_memory(self) -> bool:
        """True for the rows of a table."""
        return all(block.file.table is not None for block in self.blocks)

    def range(self, start: int, stop: int) -> DataRows:
        """Returns the rows from `start` to before `stop`; bounds outside of the data are cut."""
        kept = cut_blocks(self.blocks, start, stop)
        fingerprint = hashlib.sha256(f"{self.fingerprint}[{start}:{stop}]".encode()).hexdigest()
        return replace(self, blocks=tuple(kept), fingerprint=fingerprint)

    def only(self, names: Collection[str]) -> DataRows:
        """Returns the same rows with some of their columns."""
        kept = pa.schema([entry for entry in self.schema if entry.name in names])
        return replace(self, blocks=tuple(block.only(names) for block in self.blocks), schema=kept)

    def place_of(self, row: int) -> str:
        """Returns the file, and the row or line in it, of a row of the data, for people."""
        for block in self.blocks:
            if row < block.rows:
                return block.place_of(row)
            row -= block.rows
        return "the end of the data"

    def read(self) -> Any:
        """Reads all rows as one pyarrow Table; use it for small parts only."""
        if not self.blocks:
            raise InvalidInput("the data has no rows", field="data")
        return pa.concat_tables([block.read(self.schema) for block in self.blocks])

    def batches(self, batch_rows: int) -> Iterator[Any]:
        """Yields the rows in order as pyarrow RecordBatches of at most `batch_rows`, with one block in memory."""
        for block in self.blocks:
            yield from block.read(self.schema).combine_chunks().to_batches(max_chunksize=batch_rows)


def cut_blocks(blocks: Sequence[RowBlock], start: int, stop: int) -> list[RowBlock]:
    """Returns the blocks of the rows from `start` to before `stop`, the first and the last cut to them."""
    kept: list[RowBlock] = []
    at = 0
    for block in blocks:
        first, last = max(start - at, 0), min(stop - at, block.rows)
        if first < last:
            kept.append(replace(block, skip=block.skip + first, rows=last - first))
        at += block.rows
    return kept


def _content(file: DataFile, options: DataOptions, hints: dict[str, Any] | None, index: BlockIndex | None) -> Content:
    known = None if index is None else index.find(file, options)
    try:
        content = FORMATS[file.format].content(file, options, hints, known)
    except (OSError, pa.ArrowException, InvalidInput) as error:
        title = FORMAT_TITLES.get(file.format, "table")
        raise ConfigError(f"{file.path}: not a readable {title} file: {error}", field="data") from error
    if known is None and index is not None:
        index.insert(file, options, content.blocks)
    return content


def _every_column(files: Sequence[DataFile], options: DataOptions, index: BlockIndex | None) -> Wanted:
    """Returns the columns of the first file that can be read, and those of its partitions."""
    for file in files:
        try:
            names = _content(file, options, None, index).schema.names
        except ConfigError:
            if options.on_damaged == "fail":
                raise
            continue
        return Wanted((), keep=(*names, *(key for key, _ in file.partition if key not in names)))
    return Wanted(())


def _encoded_types(encoded: Sequence[Mapping[str, Any]], wanted: Wanted) -> dict[str, Any]:
    """Returns the types of the inputs that every file has as dictionaries of one type, unless they are copied too."""
    inputs = {entry.source for entry in wanted.inputs if entry.dtype == "BYTES"}
    inputs -= {*wanted.keep, *wanted.numbers, *wanted.texts}
    first = encoded[0] if encoded else {}
    return {
        name: kind
        for name, kind in first.items()
        if name in inputs and all(other.get(name) == kind for other in encoded[1:])
    }


def _in_types(schema: Any, types: Mapping[str, Any]) -> Any:
    return pa.schema([entry.with_type(types.get(entry.name, entry.type)) for entry in schema])


def _damage(blocks: Sequence[RowBlock]) -> str:
    """Reads the columns of a file that are wanted, and returns why it cannot be; "" when it can."""
    try:
        for block in blocks:
            block.read(block.own)
    except InvalidInput as error:
        return str(error)
    return ""


def _names_its_place(error: Exception) -> bool:
    return isinstance(error, InvalidInput) and str(error).startswith("line")


def _by_column(wanted: Wanted) -> dict[str, InputSpec | None]:
    columns: dict[str, InputSpec | None] = dict.fromkeys(wanted.keep)
    columns |= {name: InputSpec(name="label", dtype="FP64") for name in wanted.numbers}
    columns |= {name: InputSpec(name="label", dtype="BYTES") for name in wanted.texts}
    return columns | {entry.source: entry for entry in wanted.inputs}
