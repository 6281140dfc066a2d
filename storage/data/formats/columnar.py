"""Reads formats whose files hold columns: Parquet, ORC and Arrow, and tables in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.data.files import DataFile
from storage.data.formats.base import Block, Content
from storage.data.options import DataOptions


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
            return Content(parquet.schema_arrow, _blocks(sizes))

    def read(self, file: DataFile, options: DataOptions, block: Block, schema: Any) -> Any:
        """Reads a row group."""
        with file.place.open() as source, pq.ParquetFile(source) as parquet:
            return parquet.read_row_group(block.start, columns=schema.names, use_threads=False)


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
            reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False))
            return pa.Table.from_batches([reader.get_batch(block.start)])


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


def _blocks(sizes: Sequence[int]) -> tuple[Block, ...]:
    return tuple(Block(rows, index) for index, rows in enumerate(sizes))
