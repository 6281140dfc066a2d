"""Checks that every file has the columns that are read, each of one type, and of the type that training had."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from storage.data.formats import text_type
from storage.data.missing import kind_of_missing, missing_value
from storage.errors import ConfigError, InvalidInput
from storage.features import InputSpec
from storage.features.arrow import column_from_arrow
from storage.features.column_types import column_type_of, means_the_same
from storage.features.dtypes import TIMES, ColumnType
from storage.features.strict_model import did_you_mean
from storage.features.times import is_time, to_microseconds


@dataclass(frozen=True)
class Wanted:
    """The columns to read from the data."""

    #: The inputs, each read from its column.
    inputs: Sequence[InputSpec]
    #: Columns of numbers that are read too, such as labels, and the field of the configuration that names each.
    numbers: Mapping[str, str] = field(default_factory=dict)
    #: The same of columns of text.
    texts: Mapping[str, str] = field(default_factory=dict)
    #: Columns that are copied as they are.
    keep: Sequence[str] = ()
    #: The field of the configuration that names a column of `keep`, where it is not `keep`.
    fields: Mapping[str, str] = field(default_factory=dict)
    #: True when inputs of unknown type take the type of this data, as at the start of a training.
    learns: bool = False


@dataclass
class ColumnCheck:
    """Checks the files one by one and finds the one type of each column."""

    wanted: Wanted
    #: The Arrow types of the columns that come from the folders' names.
    partitions: dict[str, Any]
    #: The common Arrow type of each column, and the first file that has it.
    found: dict[str, tuple[Any, str]] = field(default_factory=dict)
    #: The types of the inputs whose spec did not give it.
    column_types: dict[str, ColumnType] = field(default_factory=dict)
    #: Values of columns that files may lack, by column.
    missing: Mapping[str, Any] = field(default_factory=dict)
    _first: str | None = None

    def add(self, path: str, schema: Any) -> None:
        """Checks a file's Arrow schema. Raises a ConfigError with the file, the column, what was expected and found."""
        there = {name: kind for name, kind in self.partitions.items() if name not in schema.names}
        there |= {entry.name: entry.type for entry in schema}
        for entry in self.wanted.inputs:
            if entry.source in there:
                self._check_input(path, entry, there)
            elif entry.source not in self.missing:
                near = did_you_mean(entry.source, there).partition("; known")[0]
                raise ConfigError(
                    f"{path}: input {entry.name!r} wants the column {entry.source!r}, which is not there"
                    f"{near}{_listing(there)}",
                    field=f"inputs.{entry.name}.column",
                )
        for is_text, labels in ((False, self.wanted.numbers), (True, self.wanted.texts)):
            for name, what in labels.items():
                if name in there or name not in self.missing:
                    _check_label(path, name, what, there, is_text=is_text)
        for name in self.wanted.keep:
            if name not in there and name not in self.missing:
                what = self.wanted.fields.get(name, "keep")
                said = f"{what}: {path}" if name in self.wanted.fields else path
                raise ConfigError(f"{said}: has no column {name!r}{did_you_mean(name, there)}", field=what)
        names = [*(entry.source for entry in self.wanted.inputs), *self.wanted.keep]
        names += [*self.wanted.numbers, *self.wanted.texts]
        for name in dict.fromkeys(names):
            if schema.names.count(name) > 1:
                raise ConfigError(f"{path}: the column {name!r} is there twice; expected one", field="data")
            if name in there or name not in self.missing:
                self._merge(path, name, there.get(name))
        self._first = self._first or path

    def finish(self) -> Any:
        """Returns the columns that are read, with the types that those of all files are converted to, as a schema.

        Raises a ConfigError for a value of `missing` that does not fit its column.
        """
        for name, hint in self.hints().items():
            if name in self.missing and name not in self.found:
                value = self.missing[name]
                kind = kind_of_missing(name, value, hint)
                for entry in self.wanted.inputs:
                    if entry.source == name:
                        self._check_input("data.missing_columns", entry, {name: kind})
                self.found[name] = (kind, "data.missing_columns")
        for name, value in self.missing.items():
            if name in self.found:
                missing_value(name, value, self.found[name][0])
        return pa.schema([pa.field(name, kind) for name, (kind, _) in self.found.items()])

    def hints(self) -> dict[str, Any]:
        """Returns the types that text is read as, by column; None for those that are inferred."""
        types: dict[str, Any] = dict.fromkeys(self.wanted.keep)
        types |= dict.fromkeys(self.wanted.numbers)
        types |= dict.fromkeys(self.wanted.texts, pa.string())
        return types | {entry.source: text_type(entry) for entry in self.wanted.inputs}

    def _check_input(self, path: str, entry: InputSpec, there: Mapping[str, Any]) -> None:
        kind = there[entry.source]
        if self._first is not None and self.found.get(entry.source, (None,))[0] == kind:
            return  # the type is the same as in earlier files
        try:
            column_from_arrow(pa.array([], kind), entry)
        except InvalidInput as error:
            raise ConfigError(f"{path}: {error}{_listing(there)}", field=f"inputs.{entry.name}.dtype") from None
        found = column_type_of(kind, entry)
        if found is None:
            return
        trained = entry.column_type or self.column_types.get(entry.name)
        if trained is None and not self.wanted.learns and found in TIMES:
            raise ConfigError(
                f"{path}: the column {entry.source!r} of the input {entry.name!r} is {kind}, and it is not known what "
                "the model was trained on; convert the column to the integers of its training data",
                field=f"inputs.{entry.name}.column_type",
            )
        if trained is None:
            self.column_types[entry.name] = found
        elif not means_the_same(trained, found):
            raise ConfigError(
                f"{path}: the column {entry.source!r} of the input {entry.name!r} holds {kind} ({found}); expected "
                f"{trained}, as in {'training' if entry.column_type else self.found[entry.source][1]}. Convert the "
                "column, or train anew on data of this type",
                field=f"inputs.{entry.name}.column_type",
            )

    def _merge(self, path: str, name: str, kind: Any) -> None:
        """Finds one type of a column for all files. kind: the type that `path` has, None without the column."""
        before = self.found.get(name)
        if before is None and self._first is None and kind is not None:
            self.found[name] = (kind, path)
        elif name not in self.missing and (before is None) != (kind is None):
            has, lacks = (path, self._first) if before is None else (before[1], path)
            raise ConfigError(
                f"{lacks}: has no column {name!r}, which {has} has; expected the same columns in every file",
                field="data",
            )
        elif before is None and kind is not None:
            self.found[name] = (kind, path)  # other files have the value of `missing`
        elif before is not None and kind != before[0]:
            self.found[name] = (self._common(path, name, kind, *before), before[1])

    def _common(self, path: str, name: str, kind: Any, before: Any, first: str) -> Any:
        if all(map(_is_date_or_timestamp, (kind, before))):
            return pa.timestamp("us")
        try:
            fields = [pa.schema([pa.field(name, plain(one))]) for one in (before, kind)]
            return pa.unify_schemas(fields, promote_options="permissive").field(name).type
        except pa.ArrowException:
            raise ConfigError(
                f"{path}: the column {name!r} holds {kind}; expected {before}, as in {first}. Convert one of them, "
                "or set its type in data.types if they are text",
                field="data",
            ) from None


def in_type(array: Any, kind: Any, column: str) -> Any:
    """Converts an array to the common type of its column.

    Raises InvalidInput or ArrowException for a value that does not fit.
    """
    if array.type == kind:
        return array
    if _is_date_or_timestamp(array.type) and _is_date_or_timestamp(kind):
        parts = [to_microseconds(chunk, column).view(kind) for chunk in array.chunks]
        return pa.chunked_array(parts, kind)
    return array.cast(plain(array.type)).cast(kind)


def plain(kind: Any) -> Any:
    """Returns the type without a dictionary or views, which Arrow does not merge with others."""
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def _is_date_or_timestamp(kind: Any) -> bool:
    return is_time(kind) and bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _listing(there: Mapping[str, Any]) -> str:
    name = next(iter(there), "")
    if len(there) == 1 and re.search(r"[,;|\t]", name):
        return f"; the file has one column, {name!r}; is there another delimiter? Set data.delimiter"
    return "; the file has: " + ", ".join(f"{name} ({kind})" for name, kind in there.items())


def _check_label(path: str, column: str, what: str, there: Mapping[str, Any], *, is_text: bool) -> None:
    name = "sample weight" if what == "sample_weight" else "label"
    where = path if what == name else f"{what}: {path}"
    if column not in there:
        near = did_you_mean(column, there).partition("; known")[0]
        raise ConfigError(f"{where}: there is no {name} column {column!r}{near}{_listing(there)}", field=what)
    kind = there[column]
    if is_text:
        fits, expected = pa.types.is_string(plain(kind)) or pa.types.is_large_string(plain(kind)), "text"
    else:
        fits = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
        expected = "numbers or booleans"
    if not fits:
        remedy = (
            f"; {{column: {column}, equals: TEXT}} makes a label of text" if name == "label" and not is_text else ""
        )
        raise ConfigError(
            f"{where}: the {name} column {column!r} is {kind}, expected {expected}{remedy}{_listing(there)}", field=what
        )
