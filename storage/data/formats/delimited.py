"""Reads CSV and TSV: lines of fields between delimiters."""

from __future__ import annotations

import csv as header_reader
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import csv

from storage.data.files import DataFile
from storage.data.formats.base import Block, Content
from storage.data.formats.lines import cut, first_row, line_of, read_bytes, rows_of
from storage.data.formats.text_types import (
    BadElement,
    exact_type,
    flat_type,
    may_be_time,
    settled_type,
    split_lists,
)
from storage.data.options import DataOptions
from storage.errors import InvalidInput
from storage.features.column_types import is_list

# Of a file, by which the types of columns are inferred: all of it, or this much, in pieces spread over its blocks.
_SAMPLE_BYTES = 16 << 20
_PIECES = 8
# Marks the fields whose type is inferred.
_INFERRED = {b"inferred": b"1"}
_ROW = re.compile(r"Row #(\d+): ?")
_COLUMN = re.compile(r"In CSV column #(\d+): ")
_BAD_VALUE = re.compile(r"CSV conversion error to (.+): invalid value '(.*)'", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WHOLE = re.compile(r"(-?\d+)\.0+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_FIELDS = re.compile(r"CSV parse error: Expected (\d+) columns, got (\d+)")


@dataclass(frozen=True)
class Delimited:
    """CSV and TSV files, cut into blocks of lines."""

    delimiter: str

    def content(
        self,
        file: DataFile,
        options: DataOptions,
        hints: Mapping[str, Any] | None,
        known: Sequence[Block] | None,
    ) -> Content:
        """Reads the names of the columns and cuts the file, all of which is read where its blocks are not known."""
        names = self._names(file, options)
        blocks = tuple(known or ())
        if known is None:
            blocks = cut(file, self._quote(options), options.block_rows, has_header=options.columns is None)
        return Content(pa.schema(self._fields(file, options, names, hints, blocks)), blocks)

    def read(self, file: DataFile, options: DataOptions, block: Block, schema: Any) -> Any:
        """Parses the lines of a block; the columns that are not wanted are not converted."""
        names = self._names(file, options)
        data = read_bytes(file, block)
        types = {field.name: flat_type(field.type) for field in schema}
        try:
            table = self._parsed(data, options, names, types)
        except pa.ArrowInvalid as error:
            inferred = {field.name for field in schema if field.metadata == _INFERRED}
            raise self._explained(str(error), data, options, names, block, inferred) from None
        columns = []
        for field in schema:
            column = table.column(field.name)
            if is_list(field.type):
                try:
                    column = split_lists(column, field.type, options.list_delimiter)
                except BadElement as error:
                    line = line_of(data, self._quote(options), block, error.row)
                    raise InvalidInput(f"line {line}, column {field.name!r}: {error}") from None
            columns.append(column)
        table = pa.table(columns, schema=schema)
        if table.num_rows != block.rows:
            raise InvalidInput(
                f"{self._lines(data, block)} hold {table.num_rows} rows, and {block.rows} line ends; expected a line a "
                "row. Set data.newlines_in_values if fields hold line ends, or end each line with \\n or \\r\\n"
            )
        return table

    def place_of(self, file: DataFile, options: DataOptions, block: Block, row: int) -> str:
        """Returns the line of the file."""
        data = read_bytes(file, block)
        return self._lines(data, block) if row < 0 else f"line {line_of(data, self._quote(options), block, row)}"

    def _lines(self, data: Any, block: Block) -> str:
        return f"lines {block.line} to {block.line + max(0, bytes(data).rstrip().count(10))}"

    def _quote(self, options: DataOptions) -> str | None:
        return options.quote if options.newlines_in_values else None

    def _names(self, file: DataFile, options: DataOptions) -> list[str]:
        if options.columns is not None:
            return list(options.columns)
        row = first_row(file, self._quote(options))[0]
        try:
            text = row.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(f"line 1 is not UTF-8 ({error.reason}); convert the file") from None
        line = text.rstrip("\r\n")
        if "\r" in line:
            raise InvalidInput(
                "line 1 holds a carriage return, which ends lines of old Mac files; expected \\n or \\r\\n at the "
                "end of each line, as `tr '\\r' '\\n'` writes them"
            )
        names = next(
            header_reader.reader(
                [line],
                delimiter=options.delimiter or self.delimiter,
                quotechar=options.quote or None,
                quoting=header_reader.QUOTE_MINIMAL if options.quote else header_reader.QUOTE_NONE,
            )
        )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidInput(
                f"line 1 names the column {twice[0]!r} twice; expected the names of the columns. If it is a row, give "
                "the names in data.columns"
            )
        return names

    def _fields(
        self,
        file: DataFile,
        options: DataOptions,
        names: Sequence[str],
        hints: Mapping[str, Any] | None,
        blocks: Sequence[Block],
    ) -> list[Any]:
        """Returns the field of each column; columns that are not wanted are text."""
        given = options.types_of({})
        wanted = dict.fromkeys(names) if hints is None else {name: hints[name] for name in names if name in hints}
        open_ended = [
            name for name, kind in wanted.items() if name not in given and (kind is None or may_be_time(kind))
        ]
        inferred = self._inferred(file, options, names, open_ended, blocks)
        types = {name: settled_type(kind, inferred.get(name, pa.null())) for name, kind in wanted.items()}
        types = {**dict.fromkeys(names, pa.string()), **types, **given}
        guessed = {name for name in open_ended if wanted[name] is None}
        return [pa.field(name, types[name], metadata=_INFERRED if name in guessed else None) for name in names]

    def _inferred(
        self,
        file: DataFile,
        options: DataOptions,
        names: Sequence[str],
        wanted: Sequence[str],
        blocks: Sequence[Block],
    ) -> dict[str, Any]:
        pieces = self._pieces(file, options, blocks) if wanted else []
        text = b"".join(data for _, data in pieces)
        if not text:
            return {}
        try:
            schema = self._parsed(text, options, names, dict.fromkeys(wanted)).schema
            kinds = {name: schema.field(name).type for name in wanted}
            again = [name for name, kind in kinds.items() if kind in (pa.float64(), pa.binary())]
            if again:
                # text that is not UTF-8 is refused here, and fractions are separated from long integers
                as_text = self._parsed(text, options, names, dict.fromkeys(again, pa.string()))
                kinds |= {name: exact_type(as_text[name]) for name in again if kinds[name] == pa.float64()}
            return kinds
        except pa.ArrowInvalid as error:
            for piece, data in pieces:  # the first with an error, for the number of its line
                try:
                    kinds = dict.fromkeys(wanted)
                    found = self._parsed(data, options, names, kinds).schema
                    kinds = {entry.name: pa.string() for entry in found if entry.type == pa.binary()}
                    if kinds:
                        self._parsed(data, options, names, kinds)
                except pa.ArrowInvalid as located:
                    raise self._explained(str(located), data, options, names, piece) from None
            raise InvalidInput(str(error)) from None

    def _pieces(self, file: DataFile, options: DataOptions, blocks: Sequence[Block]) -> list[tuple[Block, bytes]]:
        """Reads whole rows from several places of a file, or all of a small one."""
        most = _SAMPLE_BYTES
        if blocks and blocks[-1].end - blocks[0].start > _SAMPLE_BYTES:
            count = min(_PIECES, len(blocks))
            most //= count
            blocks = [blocks[place * (len(blocks) - 1) // max(count - 1, 1)] for place in range(count)]
        pieces = []
        with file.place.open() as source:
            for block in blocks:
                length = block.end - block.start
                data = bytes(source.read_at(min(length, most), block.start))
                found = rows_of(data, self._quote(options), last=length <= most)
                if len(found.starts):
                    piece = Block(len(found.starts), block.start, block.start + found.end, block.line)
                    pieces.append((piece, data[: found.end]))
        return pieces

    def _parsed(self, data: Any, options: DataOptions, names: Sequence[str], types: Mapping[str, Any]) -> Any:
        return csv.read_csv(
            pa.BufferReader(data),
            # one block, and one thread, so that errors name their row
            read_options=csv.ReadOptions(column_names=list(names), block_size=len(data) + 1, use_threads=False),
            parse_options=csv.ParseOptions(
                delimiter=options.delimiter or self.delimiter,
                quote_char=options.quote or False,
                newlines_in_values=options.newlines_in_values,
            ),
            convert_options=csv.ConvertOptions(
                include_columns=list(types),
                column_types={name: kind for name, kind in types.items() if kind is not None},
                null_values=list(options.null_values),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def _explained(
        self,
        message: str,
        data: Any,
        options: DataOptions,
        names: Sequence[str],
        block: Block,
        inferred: Collection[str] = (),
    ) -> InvalidInput:
        """Returns the error for a message of pyarrow, with the line of the file and the name of the column."""
        where = name = ""
        row = _ROW.search(message)
        if row:
            where = f"line {line_of(data, self._quote(options), block, int(row[1]) - 1)}"
            message = message.replace(row[0], "", 1)
        column = _COLUMN.match(message)
        if column:
            name = names[int(column[1])]
            where += f", column {name!r}"
            message = message[column.end() :]
        bad, fields = _BAD_VALUE.search(message), _FIELDS.search(message)
        if bad:
            message = f"{bad[2]!r} is no {bad[1]}"
            if name in inferred:
                wider = "double" if _NUMBER.fullmatch(bad[2].strip()) else "string"
                message += (
                    f", which other rows of the file suggest; set data.types: {{{name}: {wider}}}, or --type "
                    f"{name}={wider} of `emberline data convert`"
                )
            elif bad[1] == "int64" and _DATE.match(bad[2]):
                message += (
                    "; a column of times is read where every value is one, such as 2026-01-31 10:00:00, and another "
                    "row here has none"
                )
            elif bad[1].lstrip("u").startswith("int") and (whole := _WHOLE.fullmatch(bad[2])):
                message += f"; write {whole[1]} for it (in pandas, astype('Int64') keeps integers beside nulls)"
            elif not re.search(r"\d", bad[2]):
                message += "; if it stands for no value, list it in data.null_values"
        elif fields:
            message = f"{fields[2]} fields, expected {fields[1]} as there are columns"
            if options.quote and not options.newlines_in_values and bytes(data).count(options.quote.encode()):
                message += "; if a field in quotes holds a line end, set data.newlines_in_values"
        elif "invalid UTF8" in message:
            message = "the text is not UTF-8; convert the file, or give the column the type binary in data.types"
        return InvalidInput(f"{where or self._lines(data, block)}: {message}")
