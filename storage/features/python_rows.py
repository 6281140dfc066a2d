"""Converts Python values, as JSON gives them, to columns and back: exact types, exact ranges, None for null."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import InvalidInput
from storage.features.columns import Array, BytesValues, Column, Values
from storage.features.dtypes import FLOATS, INTEGERS, NUMPY_DTYPES, integer_range
from storage.features.nested import joined_rows

if TYPE_CHECKING:
    from storage.features.feature import InputSpec

_FILLERS: dict[str, Any] = {"BYTES": b"", "BOOL": False, "FP32": 0.0, "FP64": 0.0}


def column_from_rows(spec: InputSpec, rows: Sequence[Any]) -> Column:
    """Makes the column of an input from Python values, one for each row: a scalar, a list, or None for null."""
    if spec.kind == "list":
        return column_from_lists(spec.dtype, joined_rows(rows) if spec.flatten else rows, name=spec.name)
    flat: list[Any] = []
    for index, row in enumerate(rows):
        if isinstance(row, list | tuple):
            if len(row) != spec.width:
                raise _wrong(spec.name, index, f"expected {spec.width} values, got {len(row)}")
            flat.extend(row)
        elif row is None:
            flat.extend([None] * spec.width)
        elif spec.width == 1:
            flat.append(row)
        else:
            raise _wrong(spec.name, index, f"expected a list of {spec.width} values, got {type(row).__name__}")
    valid = _validity(flat)
    if valid is not None:
        filler = _FILLERS.get(spec.dtype, 0)
        flat = [filler if value is None else value for value in flat]
    values = exact_values(spec.dtype, flat, spec.name, lambda place: place // spec.width)
    return Column(spec.dtype, len(rows), spec.width, values, None, valid)


def column_from_lists(dtype: str, rows: Sequence[Sequence[Any] | None], *, name: str = "") -> Column:
    """Makes a list column from Python lists; None is a null row.

    A null inside a list of floats becomes NaN and keeps its position; in other lists it is left out.
    """
    for index, row in enumerate(rows):
        if row is not None and not isinstance(row, list | tuple):
            raise _wrong(name, index, f"expected a list, got {type(row).__name__}")
    lists: list[Sequence[Any]] = [() if row is None else row for row in rows]
    if dtype in FLOATS:
        lists = [[float("nan") if value is None else value for value in row] if None in row else row for row in lists]
    else:
        lists = [[value for value in row if value is not None] if None in row else row for row in lists]
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in lists], out=offsets[1:])
    flat = list(chain.from_iterable(lists))
    values = exact_values(dtype, flat, name, lambda place: int(np.searchsorted(offsets, place, "right")) - 1)
    return Column(dtype, len(rows), 1, values, offsets, _validity(rows))


def column_rows(column: Column) -> list[Any]:
    """Returns a column as Python values, one for each row: a scalar, a list, or None for null."""
    flat: list[Any] = column.values.tolist()
    valid = None if column.valid is None else column.valid.astype(bool).tolist()
    if column.offsets is not None:
        ends = column.offsets.tolist()
        return [flat[ends[row] : ends[row + 1]] if valid is None or valid[row] else None for row in range(column.rows)]
    if valid is not None:
        flat = [value if ok else None for value, ok in zip(flat, valid, strict=True)]
    if column.width == 1:
        return flat
    return [flat[start : start + column.width] for start in range(0, len(flat), column.width)]


def bytes_values(values: Sequence[Any], name: str) -> BytesValues:
    """Packs strings into one buffer; str becomes UTF-8. Raises InvalidInput for anything else."""
    parts: list[bytes] = []
    for place, value in enumerate(values):
        if isinstance(value, bytes):
            parts.append(value)
        elif isinstance(value, str):
            parts.append(value.encode("utf-8", "surrogatepass"))
        else:
            raise _wrong(name, place, f"expected a string, got {type(value).__name__}", what="value")
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64) if parts else np.zeros(0, dtype=np.int64)
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    return BytesValues(np.frombuffer(b"".join(parts), dtype=np.uint8), starts, ends)


def exact_values(dtype: str, values: list[Any], name: str, row_of: Any) -> Values:
    """Returns Python values as a flat array of `dtype`.

    Raises InvalidInput naming the row of the first value that does not fit.
    """
    if dtype == "BYTES":
        return bytes_values(values, name)
    kinds = set(map(type, values))
    if dtype in INTEGERS:
        if not kinds <= {int}:
            raise _first_stranger(dtype, values, (int,), name, row_of)
        low, high = integer_range(dtype)
        if values and not (low <= min(values) and max(values) <= high):
            place = next(i for i, value in enumerate(values) if not low <= value <= high)
            raise _wrong(name, row_of(place), f"{values[place]} does not fit {dtype}")
    elif dtype in FLOATS:
        if not kinds <= {int, float}:
            raise _first_stranger(dtype, values, (int, float), name, row_of)
        if int in kinds:
            values = [_as_float(value, name, row_of, place) for place, value in enumerate(values)]
        if dtype == "FP32":
            with np.errstate(over="ignore"):
                return np.array(values, dtype=np.float64).astype(np.float32)
    elif not kinds <= {bool}:
        raise _first_stranger(dtype, values, (bool,), name, row_of)
    return np.array(values, dtype=NUMPY_DTYPES[dtype])


def _as_float(value: float, name: str, row_of: Any, place: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise _wrong(name, row_of(place), "the number is too large for a float") from None


def _validity(values: Sequence[Any]) -> Array | None:
    if None not in values:
        return None
    return np.array([value is not None for value in values], dtype=np.uint8)


def _first_stranger(dtype: str, values: list[Any], allowed: tuple[type, ...], name: str, row_of: Any) -> InvalidInput:
    place = next(i for i, value in enumerate(values) if type(value) not in allowed)
    return _wrong(name, row_of(place), f"expected {dtype}, got {type(values[place]).__name__}")


def _wrong(name: str, row: int, problem: str, *, what: str = "row") -> InvalidInput:
    where = f"input {name!r}, {what} {row}" if name else f"{what} {row}"
    return InvalidInput(f"{where}: {problem}", field=name)
