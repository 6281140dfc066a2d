"""Reads formats whose files hold columns: Parquet, ORC and Arrow, and tables in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.data.files import DataFile
from storage.data.formats.base import Block, Content
from storage.data.options import DataOptions
from storage.features.column_types import is_list

# A dictionary of text is read as one where it and its indices have so many bytes a value, and some for their pages.
_SMALL_BYTES, _PAGE_BYTES = 3, 4096
_JUDGED_GROUPS = 8


class _Columnar:
    #: What the format calls its blocks.
    block = ""

    def place_of(self, file: DataFile, options: DataOptions, block: Block, row: int) -> str:
        """Returns the row of the file, from 0, or the block."""
        if row < 0:
            return f"{self.block} {block.start}"
        before = sum(one.rows for one in self.content(file, options, None, None).blocks[: block.start])
        return f"row {before + row}"

    def content(
        self, file: DataFile, options: DataOptions, hints: Mapping[str, Any] | None, known: Sequence[Block] | None
    ) -> Content:
        """Reads the footer."""
        raise NotImplementedError


class Parquet(_Columnar):
    """Parquet files, a row group at a time."""

    block = "row group"

    def content(
        self, file: DataFile, options: DataOptions, hints: Mapping[str, Any] | None, known: Sequence[Block] | None
    ) -> Content:
        """Reads the footer."""
        with file.place.open() as source, pq.ParquetFile(source) as parquet:
            sizes = [parquet.metadata.row_group(index).num_rows for index in range(parquet.num_row_groups)]
            return Content(parquet.schema_arrow, _blocks(sizes), _encoded(source, parquet, hints or {}))

    def read(self, file: DataFile, options: DataOptions, block: Block, schema: Any) -> Any:
        """Reads a row group."""
        encoded = {entry.name for entry in schema if is_encoded(entry.type)}
        known = _footer(file)
        text = [path for path in known.text if path.partition(".")[0] in encoded]
        with (
            file.place.open() as source,
            pq.ParquetFile(source, metadata=known.metadata, read_dictionary=text) as parquet,
        ):
            return parquet.read_row_group(block.start, columns=schema.names, use_threads=_are_many(options))


class Orc(_Columnar):
    """ORC files, a stripe at a time."""

    block = "stripe"

    def content(
        self, file: DataFile, options: DataOptions, hints: Mapping[str, Any] | None, known: Sequence[Block] | None
    ) -> Content:
        """Reads the footer, and a column of each stripe where it is not known how many rows they have."""
        from pyarrow import orc

        with file.place.open() as source:
            stripes = orc.ORCFile(source)
            schema = stripes.schema
            if known is not None:
                return Content(schema, tuple(known))
            if stripes.nstripes <= 1 or not schema.names:
                return Content(schema, _blocks([stripes.nrows] * stripes.nstripes))
            counts = (stripes.read_stripe(index, columns=schema.names[:1]) for index in range(stripes.nstripes))
            return Content(schema, _blocks([part.num_rows for part in counts]))

    def read(self, file: DataFile, options: DataOptions, block: Block, schema: Any) -> Any:
        """Reads a stripe."""
        from pyarrow import orc

        with file.place.open() as source:
            return pa.Table.from_batches([orc.ORCFile(source).read_stripe(block.start, columns=schema.names)])


class Arrow(_Columnar):
    """Files of Arrow's IPC format, which feather is, a record batch at a time."""

    block = "record batch"

    def content(
        self, file: DataFile, options: DataOptions, hints: Mapping[str, Any] | None, known: Sequence[Block] | None
    ) -> Content:
        """Reads the footer, and a column of each batch where it is not known how many rows they have."""
        with file.place.open() as source:
            schema = pa.ipc.open_file(source).schema
            if known is not None:
                return Content(schema, tuple(known))
            reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=[0]))
            sizes = [reader.get_batch(index).num_rows for index in range(reader.num_record_batches)]
            return Content(schema, _blocks(sizes))

    def read(self, file: DataFile, options: DataOptions, block: Block, schema: Any) -> Any:
        """Reads a record batch."""
        with file.place.open() as source:
            there = pa.ipc.open_file(source).schema
            fields = [there.get_field_index(name) for name in schema.names]
            reading = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=_are_many(options))
            reader = pa.ipc.open_file(source, options=reading)
            batch = reader.get_batch(block.start)
            batch.validate(full=True)  # Arrow trusts what a file says of its memory, and so does the feature engine
            return pa.Table.from_batches([batch])


class Memory(_Columnar):
    """Tables in memory, cut into blocks of rows."""

    block = "part"

    def content(
        self, file: DataFile, options: DataOptions, hints: Mapping[str, Any] | None, known: Sequence[Block] | None
    ) -> Content:
        """Cuts the table."""
        rows, size = file.table.num_rows, options.block_rows
        return Content(file.table.schema, _blocks([min(size, rows - start) for start in range(0, rows, size)]))

    def read(self, file: DataFile, options: DataOptions, block: Block, schema: Any) -> Any:
        """Takes a part of the table, without a copy."""
        return file.table.select(schema.names).slice(block.start * options.block_rows, block.rows)


def _are_many(options: DataOptions) -> bool:
    """Returns whether several threads decode the columns; sets the size of the one pool that Arrow has in a process."""
    if options.column_threads > 1 and pa.cpu_count() != options.column_threads:
        pa.set_cpu_count(options.column_threads)
    return options.column_threads > 1


@dataclass(frozen=True)
class _Footer:
    """Holds what reading a row group needs of the footer of its file."""

    metadata: Any
    #: The columns of text, and of lists of text, by their paths in the file (`history.list.element`).
    text: Mapping[str, int]


@lru_cache(maxsize=4)
def _footer(file: DataFile) -> _Footer:
    """Reads a footer once for all row groups: it takes long to parse where there are many."""
    with file.place.open() as source, pq.ParquetFile(source) as parquet:
        return _Footer(parquet.metadata, _text_leaves(parquet))


def is_encoded(kind: Any) -> bool:
    """Returns whether a type is a dictionary, or a list of one."""
    return bool(pa.types.is_dictionary(kind.value_type if is_list(kind) else kind))


def _encoded(source: Any, parquet: Any, wanted: Iterable[str]) -> dict[str, Any]:
    """Returns the types that columns of text have when they are read as the dictionaries that the file has of them.

    Left out are columns of which it has none, or such large ones that there is little to gain: this is judged by the
    sizes of some row groups.
    """
    wanted = set(wanted)
    leaves = _text_leaves(parquet)
    if not parquet.num_row_groups or wanted.isdisjoint(path.partition(".")[0] for path in leaves):
        return {}
    groups = range(0, parquet.num_row_groups, -(-parquet.num_row_groups // _JUDGED_GROUPS))
    chosen = [
        path
        for path, place in leaves.items()
        if path.partition(".")[0] in wanted
        and all(_has_small_dictionary(parquet.metadata.row_group(group).column(place)) for group in groups)
    ]
    schema = pq.ParquetFile(source, metadata=parquet.metadata, read_dictionary=chosen).schema_arrow
    names = [path.partition(".")[0] for path in chosen]
    return {name: schema.field(name).type for name in names if is_encoded(schema.field(name).type)}


def _text_leaves(parquet: Any) -> dict[str, int]:
    """Returns the places of the columns of text, by their paths."""
    columns = map(parquet.schema.column, range(len(parquet.schema.names)))
    return {column.path: place for place, column in enumerate(columns) if column.physical_type == "BYTE_ARRAY"}


def _has_small_dictionary(chunk: Any) -> bool:
    """Returns whether a column of a row group is a dictionary and indices, both small beside its values."""
    if not chunk.has_dictionary_page:
        return False
    dictionary = chunk.data_page_offset - chunk.dictionary_page_offset
    indices = chunk.total_compressed_size - dictionary
    small = _PAGE_BYTES + chunk.num_values * _SMALL_BYTES
    return bool(0 <= dictionary <= small and indices <= small)


def _blocks(sizes: Sequence[int]) -> tuple[Block, ...]:
    return tuple(Block(rows, index) for index, rows in enumerate(sizes))
