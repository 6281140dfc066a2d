"""Finds the types that columns of text are read as, and splits lists in one field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import InvalidInput
from storage.features import InputSpec
from storage.features.column_types import is_list
from storage.features.dtypes import NUMPY_DTYPES, TIME_DTYPES
from storage.features.times import is_time


def text_type(spec: InputSpec) -> Any:
    """Returns the Arrow type that text is read as for an input."""
    flat = pa.string() if spec.dtype == "BYTES" else pa.from_numpy_dtype(NUMPY_DTYPES[spec.dtype])
    if spec.unit is not None:
        flat = pa.int64()
    return pa.list_(flat) if spec.kind == "list" or spec.width > 1 else flat


def may_be_time(kind: Any) -> bool:
    """Returns whether text may hold times where this type is expected, so that it has to be looked at."""
    return kind in [pa.from_numpy_dtype(NUMPY_DTYPES[dtype]) for dtype in TIME_DTYPES]


def settled_type(hint: Any, inferred: Any) -> Any:
    """Returns the type of a column: times where the text holds them, and what is expected of anything else."""
    if hint is None:
        return pa.string() if pa.types.is_null(inferred) else inferred
    return inferred if may_be_time(hint) and is_time(inferred) else hint


def exact_type(texts: Any) -> Any:
    """Returns the type that holds numbers as they are written: integers that no int64 holds are no double, which would
    give several of them one value.

    texts: the values of a column that holds fractions, or integers beyond int64.
    """
    digits = pc.utf8_trim_whitespace(texts.drop_null())
    if not pc.all(pc.match_substring_regex(digits, r"^[+-]?[0-9]+$")).as_py():
        return pa.float64()
    try:
        digits.cast(pa.uint64())
    except pa.ArrowInvalid:
        return pa.string()
    return pa.uint64()


def flat_type(kind: Any) -> Any:
    """Returns the type that a CSV reader gives a column of this type: text for a list."""
    return pa.string() if is_list(kind) else kind


def split_lists(column: Any, kind: Any, delimiter: str) -> Any:
    """Splits a column of text into lists of `kind`; an empty text is an empty list.

    Raises _BadElement with the row and the text of the first element that does not fit.
    """
    if is_list(kind.value_type):
        raise InvalidInput(f"a field of text holds one list of values, which cannot be read as {kind}")
    text = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(text, pa.ChunkedArray):
        text = pa.concat_arrays(text.chunks)
    parts = pc.split_pattern(pc.if_else(pc.equal(text, ""), None, text), delimiter)
    lengths = pc.fill_null(pc.list_value_length(parts), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = np.zeros(len(text) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    flat = parts.flatten()
    try:
        values = flat.cast(kind.value_type)
    except pa.ArrowInvalid:
        at = first_bad(flat, kind.value_type)
        raise BadElement(
            int(np.searchsorted(offsets, at, side="right")) - 1, flat[at].as_py(), kind.value_type
        ) from None
    mask = text.is_null() if text.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=pa.list_(kind.value_type), mask=mask)


class BadElement(InvalidInput):
    """A text that is no value of its type."""

    def __init__(self, row: int, text: str, kind: Any) -> None:
        super().__init__(f"{text!r} is no {kind}")
        self.row = row


def first_bad(texts: Any, kind: Any) -> int:
    """Returns the place of the first text that is no value of `kind`; there must be one."""
    low, high = 0, len(texts)  # the first `low` are good, and one before `high` is not
    while high - low > 1:
        middle = (low + high) // 2
        try:
            texts.slice(low, middle - low).cast(kind)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low
