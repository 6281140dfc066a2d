"""Reads libsvm: lines of a label and pairs `index:value`, where a pair that is not there means zero.

A column is called by its index, or by `data.columns`, whose first name is that of index 1. The column `label` has the
labels and `qid` the query of a row; `indices` and `values` are lists of all pairs of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.data.files import DataFile
from storage.data.formats.base import Block, Content
from storage.data.formats.lines import Rows, cut, line_of, read_bytes, rows_of
from storage.data.formats.text_types import first_bad, flat_type
from storage.data.options import DataOptions
from storage.errors import InvalidInput
from storage.features.column_types import is_list

_INDICES, _VALUES, _LABEL, _QUERY = "indices", "values", "label", "qid"
_OF_THE_FORMAT = {_LABEL: pa.float32(), _INDICES: pa.list_(pa.int64()), _VALUES: pa.list_(pa.float32())}
Array = np.ndarray[Any, Any]


class Libsvm:
    """Files of libsvm, cut into blocks of lines."""

    def content(
        self,
        file: DataFile,
        options: DataOptions,
        hints: Mapping[str, Any] | None,
        known: Sequence[Block] | None,
    ) -> Content:
        """Cuts the file, all of which is read where its blocks are not known."""
        blocks = cut(file, None, options.block_rows, has_header=False) if known is None else tuple(known)
        hints = hints or {}
        names = options.columns or [name for name in hints if name.isdecimal()]
        types = dict(_OF_THE_FORMAT)
        if _QUERY in hints:
            types[_QUERY] = pa.int64()
        types |= dict.fromkeys(names, pa.float32())
        # Numbers alone: a text has no zero.
        types |= {name: kind for name, kind in hints.items() if name in types and _is_number(kind, like=types[name])}
        types |= {name: kind for name, kind in options.types_of({}).items() if name in types}
        return Content(pa.schema(types.items()), blocks)

    def read(self, file: DataFile, options: DataOptions, block: Block, schema: Any) -> Any:
        """Parses the lines of a block."""
        data = read_bytes(file, block)
        rows = rows_of(data, None, last=True)
        return _Pairs(data, rows, block, options.columns).table(schema)

    def place_of(self, file: DataFile, options: DataOptions, block: Block, row: int) -> str:
        """Returns the line of the file."""
        if row < 0:
            return f"the lines from {block.line} on"
        return f"line {line_of(read_bytes(file, block), None, block, row)}"


class _Pairs:
    """The words of some lines, split into labels and pairs."""

    def __init__(self, data: Any, rows: Rows, block: Block, columns: Sequence[str] | None) -> None:
        self._data, self._block, self._columns = data, block, columns
        self._rows = len(rows.starts)
        lines = _texts(data, rows)
        if pc.any(pc.match_substring(lines, "#")).as_py():
            lines = pc.replace_substring_regex(lines, pattern="#.*", replacement="")
        lines = pc.utf8_trim_whitespace(lines)
        bare = np.flatnonzero(pc.equal(lines, "").to_numpy(zero_copy_only=False))
        if len(bare):
            raise self._error(int(bare[0]), "there is no label; expected a label and pairs index:value")
        words = pc.utf8_split_whitespace(lines)
        counts = pc.list_value_length(words).to_numpy(zero_copy_only=False).astype(np.int64)
        flat = words.flatten()
        ends = np.cumsum(counts)
        is_pair = np.ones(len(flat), dtype=bool)
        is_pair[ends - counts] = False
        self.labels = flat.filter(pa.array(~is_pair))
        #: The row of each pair.
        self._row = np.repeat(np.arange(self._rows), counts - 1)
        pairs = flat.filter(pa.array(is_pair))
        split = pc.split_pattern(pairs, ":", max_splits=1)
        wrong = np.flatnonzero(pc.list_value_length(split).to_numpy(zero_copy_only=False) != 2)
        if len(wrong):
            raise self._error(int(self._row[wrong[0]]), f"{pairs[int(wrong[0])].as_py()!r} is no pair index:value")
        parts = split.flatten()
        index, self._value = (
            parts.take(pa.array(np.arange(0, len(parts), 2))),
            parts.take(pa.array(np.arange(1, len(parts), 2))),
        )
        is_query = pc.equal(index, _QUERY)
        self._queries = is_query.to_numpy(zero_copy_only=False)
        number = self._cast(pc.if_else(is_query, "-1", index), pa.int64(), self._row, "the index")
        self._index: Array = number.to_numpy(zero_copy_only=False)
        if columns is not None:
            outside = np.flatnonzero(~self._queries & ((self._index < 1) | (self._index > len(columns))))
            if len(outside):
                raise self._error(
                    int(self._row[outside[0]]),
                    f"the index {self._index[outside[0]]} has no name in data.columns; expected 1 to {len(columns)}",
                )
        self._order = np.argsort(self._index, kind="stable")
        self._sorted = self._index[self._order]

    def table(self, schema: Any) -> Any:
        return pa.table([self._column(field.name, field.type) for field in schema], schema=schema)

    def _column(self, name: str, kind: Any) -> Any:
        own = name not in (self._columns or ())
        if own and name == _LABEL:
            return self._cast(self.labels, kind, np.arange(self._rows), "the label")
        if own and name in (_INDICES, _VALUES):
            pairs = np.flatnonzero(~self._queries)
            offsets = np.zeros(self._rows + 1, dtype=np.int32)
            np.cumsum(np.bincount(self._row[pairs], minlength=self._rows), out=offsets[1:])
            values = pa.array(self._index[pairs]) if name == _INDICES else self._value.take(pa.array(pairs))
            values = self._cast(values, kind.value_type, self._row[pairs], "the value")
            return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind)
        if own and name == _QUERY:
            chosen = np.flatnonzero(self._queries)
        else:
            wanted = int(name) if own else 1 + list(self._columns or ()).index(name)
            first, last = np.searchsorted(self._sorted, [wanted, wanted + 1])
            chosen = self._order[first:last]
        values = self._cast(self._value.take(pa.array(chosen)), kind, self._row[chosen], f"the value of {name}")
        dense = np.zeros(self._rows, dtype=kind.to_pandas_dtype())
        dense[self._row[chosen]] = values.to_numpy(zero_copy_only=False)
        return pa.array(dense, kind)

    def _cast(self, texts: Any, kind: Any, rows: Array, what: str) -> Any:
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:
            at = first_bad(texts, kind)
            raise self._error(int(rows[at]), f"{what} {texts[at].as_py()!r} is no {kind}") from None

    def _error(self, row: int, message: str) -> InvalidInput:
        return InvalidInput(f"line {line_of(self._data, None, self._block, row)}: {message}")


def _texts(data: Any, rows: Rows) -> Any:
    """Returns the rows as an Arrow array of text, without a copy."""
    # Empty lines between rows belong to the row before them, where they are white space.
    offsets = np.append(rows.starts, len(data)).astype(np.int64)
    lines = pa.LargeStringArray.from_buffers(len(rows.starts), pa.py_buffer(offsets), pa.py_buffer(data))
    try:
        lines.validate(full=True)
    except pa.ArrowInvalid:
        raise InvalidInput("the text is not UTF-8; expected a label and pairs index:value in each line") from None
    return lines


def _is_number(kind: Any, *, like: Any) -> bool:
    if kind is None or is_list(kind) != is_list(like):
        return False
    flat = kind.value_type if is_list(kind) else kind
    return flat == flat_type(flat) and bool(
        pa.types.is_integer(flat) or pa.types.is_floating(flat) or pa.types.is_boolean(flat)
    )
