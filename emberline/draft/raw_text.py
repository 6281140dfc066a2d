"""Finds in fields of text what types do not tell: words for no value, leading zeros, numbers in other notations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage.data import DataOptions, DataRows

_NULL_WORDS = ("na", "n/a", "#n/a", "#na", "nan", "null", "none", "nil", "-", "--", "?", "missing", "unknown", "\\n")
_NUMBER = r"^-?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?$|^-?inf$"
_LEADING_ZERO = r"^-?0\d"
# 12,34 and 1.234,56; 1,234 and 1,234.56. A field without a comma may stand beside them.
_WITH_COMMA = r"^[+-]?(\d{1,3}(\.\d{3})*|\d+),\d+$|^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$"
_PLAIN = r"^[+-]?\d+$"
_JSON = r"^\s*(\[.*\]|\{.*\})\s*$"
_NEARLY_ALL = 0.95


@dataclass(frozen=True)
class Reading:
    """A sample, and the options that read it so."""

    #: A pyarrow Table.
    table: Any
    options: DataOptions
    #: Words that stand for no value, by the column of numbers that has them.
    null_words: Mapping[str, list[str]] = field(default_factory=dict)


def reread(table: Any, rows: DataRows, options: DataOptions, labels: Collection[str]) -> Reading:
    """Returns a sample of text files with numbers where words for no value hid them, and codes such as 007 as text.

    table: the values of `rows` by their inferred types. Columns whose type the options give stay.
    """
    kept = {*options.types, *(() if "null_values" not in options.model_fields_set else table.column_names)}
    words = {name: found for name in table.column_names if name not in kept and (found := _null_words(table[name]))}
    more = sorted({word for found in words.values() for word in found})
    wider = options.model_copy(update={"null_values": (*options.null_values, *more)}) if more else options
    integers = [
        entry.name
        for entry in table.schema
        if pa.types.is_integer(entry.type) and entry.name not in options.types and entry.name not in labels
    ]
    if not words and not integers:
        return Reading(table, options)
    raw = _as_text(rows, wider, {*words, *integers})
    numbers = {name: values for name in words if (values := _numbers(raw[name])) is not None}
    codes = [name for name in integers if _share(pc.unique(raw[name]), _LEADING_ZERO) > 0]
    for name in (*numbers, *codes):
        table = table.set_column(table.column_names.index(name), name, numbers.get(name, raw[name]))
    return Reading(table, wider if numbers else options, {name: words[name] for name in numbers})


def looks_like_numbers(texts: Any) -> bool:
    """Returns whether nearly all of these texts, a pyarrow Array, are numbers with commas in them."""
    commas = _share(texts, _WITH_COMMA)
    return commas * 3 >= 1 and commas + _share(texts, _PLAIN) >= _NEARLY_ALL


def looks_like_json(texts: Any) -> bool:
    """Returns whether nearly all of these texts, a pyarrow Array, are lists or objects of JSON."""
    return _share(texts, _JSON) >= _NEARLY_ALL


def _share(texts: Any, pattern: str) -> float:
    return float(pc.mean(pc.match_substring_regex(texts, pattern).cast("double")).as_py() or 0.0)


def _null_words(column: Any) -> list[str]:
    """Returns the words for no value in a column of text that has nothing else but numbers."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return []
    texts = pc.unique(column).drop_null()
    is_number = pc.match_substring_regex(texts, _NUMBER)
    others = texts.filter(pc.invert(is_number)).to_pylist() if pc.any(is_number).as_py() else []
    return others if len(others) <= len(_NULL_WORDS) and all(word.lower() in _NULL_WORDS for word in others) else []


def _numbers(column: Any) -> Any | None:
    for kind in (pa.int64(), pa.float64()):
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return None


def _as_text(rows: DataRows, options: DataOptions, columns: Collection[str]) -> Any:
    """Reads columns of text files as they are written."""

    def as_text(schema: Any) -> Any:
        return pa.schema([(entry.name, pa.string()) for entry in schema if entry.name in columns])

    blocks = tuple(replace(block, own=as_text(block.own), options=options) for block in rows.blocks)
    return replace(rows, blocks=blocks, schema=as_text(rows.schema), options=options).read()
