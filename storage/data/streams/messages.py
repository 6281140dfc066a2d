"""Turns the messages of a broker into rows: fields of text, objects of JSON, or batches of Arrow.

Text is read by the types of the inputs, as in CSV: nothing is guessed from what happens to have come. Columns that are
not wanted are ignored, so producers may add some.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc
from pyarrow import json as json_reader

from storage.data.columns import ColumnCheck, Wanted
from storage.data.formats.text_types import BadElement, first_bad, split_lists
from storage.data.missing import missing_value
from storage.data.options import DataOptions
from storage.errors import InvalidInput
from storage.features import InputSpec
from storage.features.column_types import is_list

logger = logging.getLogger("emberline.data")

#: Returns where a message came from, for people.
PlaceOf = Callable[[int], str]


class Messages:
    """Decodes messages into tables with the wanted columns. Errors name the message, and the column and value."""

    def __init__(self, wanted: Wanted, options: DataOptions) -> None:
        self._wanted, self._options = wanted, options
        hints = ColumnCheck(wanted, {}, missing=options.missing_columns).hints()
        inputs = {entry.source: entry for entry in wanted.inputs}
        trained = {name: _trained_type(hint, inputs.get(name)) for name, hint in hints.items()}
        #: The Arrow type of each column that is read; None where values decide.
        self._types = {**trained, **{name: kind for name, kind in options.types_of({}).items() if name in trained}}
        # Columns that no message has had so far, without those that requests may leave out too.
        self._unseen = set(self._types) - {entry.source for entry in wanted.inputs if entry.missing == "null"}
        self._checked: tuple[Any, ColumnCheck] | None = None

    def fields(self, rows: Sequence[Mapping[bytes, bytes]], place_of: PlaceOf) -> Any:
        """Returns a row for each mapping of a column to its text.

        A field that is not there is null, or what `missing_columns` says, whatever else is read with it. Raises
        ConfigError where no row has had a field, unless its input may be left out: its name may be wrong.
        """
        columns = {}
        for name, kind in self._types.items():
            texts = [row.get(name.encode()) for row in rows]
            lacks = [name.encode() not in row for row in rows]
            if not all(lacks):
                self._unseen.discard(name)
            elif name in self._unseen or name in self._options.missing_columns:
                continue
            try:
                columns[name] = self._parsed(texts, kind, numeric=name in self._wanted.numbers)
            except BadElement as error:
                raise InvalidInput(f"{place_of(error.row)}: column {name!r}: {error}", field="follow") from None
            if any(lacks) and name in self._options.missing_columns:
                value = missing_value(name, self._options.missing_columns[name], columns[name].type)
                columns[name] = pc.if_else(pa.array(lacks), value, columns[name])
        return self._conformed(pa.table(columns) if columns else pa.table({"": [None] * len(rows)}), place_of(0))

    def objects(self, values: Sequence[bytes], place_of: PlaceOf) -> Any:
        """Returns a row for each object of JSON."""
        lines = b"\n".join(value.replace(b"\n", b" ").replace(b"\r", b" ") for value in values)
        known = pa.schema([(name, kind) for name, kind in self._types.items() if kind is not None])
        behaviour = "infer" if len(known) < len(self._types) else "ignore"
        try:
            table = json_reader.read_json(
                pa.BufferReader(lines),
                read_options=json_reader.ReadOptions(use_threads=False, block_size=len(lines) + 1),
                parse_options=json_reader.ParseOptions(explicit_schema=known, unexpected_field_behavior=behaviour),
            )
        except pa.ArrowException as error:
            raise _located(error, partial(self.objects, place_of=place_of), values, place_of) from None
        if table.num_rows != len(values):
            if len(values) > 1:
                for row, value in enumerate(values):
                    self.objects([value], partial(_only, place_of(row)))
            raise InvalidInput(f"{place_of(0)}: expected one object of JSON, got {table.num_rows}", field="follow")
        return self._conformed(table, place_of(0))

    def batches(self, value: bytes, place: str) -> Any:
        """Returns the rows of an Arrow IPC stream."""
        try:
            with ipc.open_stream(pa.BufferReader(value)) as reader:
                table = reader.read_all()
        except (pa.ArrowException, OSError) as error:
            raise InvalidInput(f"{place}: is no Arrow IPC stream: {error}", field="follow") from None
        return self._conformed(table, place)

    def _parsed(self, values: list[bytes | None], kind: Any, *, numeric: bool) -> Any:
        try:
            texts = pa.array(values, pa.binary()).cast(pa.string())
        except pa.ArrowException:
            row = next(row for row, value in enumerate(values) if value is not None and not _is_text(value))
            raise BadElement(row, repr(values[row])[:80], "UTF-8") from None
        nulls = pc.is_in(texts, value_set=pa.array(self._options.null_values, pa.string()))
        texts = pc.if_else(nulls, None, texts)
        if kind is not None and is_list(kind):
            return split_lists(texts, kind, self._options.list_delimiter)
        kinds = [kind or pa.string()] if not numeric else [kind] if kind is not None else [pa.float64(), pa.bool_()]
        for each in kinds:
            try:
                return texts.cast(each)
            except pa.ArrowInvalid:
                continue
        at = first_bad(texts, kinds[0])
        raise BadElement(at, texts[at].as_py(), kinds[0])

    def _conformed(self, table: Any, place: str) -> Any:
        """Returns the wanted columns. Raises ConfigError for one that is missing or of another type."""
        if self._checked is None or self._checked[0] != table.schema:
            check = ColumnCheck(self._wanted, {}, missing=self._options.missing_columns)
            check.add(place, table.schema)
            self._checked = (table.schema, check)
        columns = []
        schema = self._checked[1].finish()
        for entry in schema:
            if entry.name in table.column_names:
                columns.append(table.column(entry.name))
            else:
                value = missing_value(entry.name, self._options.missing_columns[entry.name], entry.type)
                columns.append(pa.chunked_array([pa.repeat(value, table.num_rows)]))
        return pa.table(columns, schema=schema)


def without_damaged(decode: Callable[[list[int]], Any], count: int, *, skips: bool) -> tuple[Any, list[int]] | None:
    """Decodes messages by their numbers, 0 to count - 1; returns a table, and the numbers of its rows.

    skips: messages that cannot be decoded are left out, with a warning; None when none is left. Else they are errors.
    """
    kept = list(range(count))
    try:
        return decode(kept), kept
    except InvalidInput:
        if not skips:
            raise
    kept = []
    for number in range(count):
        try:
            decode([number])
            kept.append(number)
        except InvalidInput as error:
            logger.warning("left out as damaged: %s", error)
    return (decode(kept), kept) if kept else None


def _trained_type(hint: Any, spec: InputSpec | None) -> Any:
    """Returns the type of text by what the model was trained on, where the dtype of the input does not tell it."""
    if spec is None or hint is None or is_list(hint) or spec.unit is not None:
        return hint
    if spec.column_type == "timestamp":
        return pa.timestamp("us")
    if spec.column_type == "boolean":
        return pa.bool_()
    if spec.column_type == "integer" and pa.types.is_floating(hint):
        return pa.int64()
    return hint


def _located(
    error: Exception, decode: Callable[[Sequence[bytes]], object], values: Sequence[bytes], place_of: PlaceOf
) -> InvalidInput:
    """Returns the error of the first message that cannot be decoded alone, with its place."""
    if len(values) > 1:
        for row, value in enumerate(values):
            try:
                decode([value])
            except InvalidInput as alone:
                return InvalidInput(f"{place_of(row)}{str(alone).removeprefix(place_of(0))}", field="follow")
    return InvalidInput(f"{place_of(0)}: cannot be read: {error}", field="follow")


def _only(place: str, row: int) -> str:
    return place


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
