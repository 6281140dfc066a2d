"""Converts tensors from and to JSON lists, flat or nested: exact integers, no silent conversion, nulls in a mask."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import numpy as np

from serving.protocol.dtypes import WIRE_TYPES
from serving.protocol.tensors import WireTensor, element_count_error
from storage.errors import InvalidInput
from storage.features import BytesValues

# The most elements that replace a `null` in place of a row. They are created here, not received, so they need a bound.
MAX_NULL_ELEMENTS = 1 << 22

_NONE = type(None)
_ALLOWED: dict[str, frozenset[type]] = {
    "integer": frozenset({int, _NONE}),
    "small integer": frozenset({int, _NONE}),
    "float": frozenset({int, float, _NONE}),
    "bytes": frozenset({str, _NONE}),
    "bool": frozenset({bool, _NONE}),
}
_EXPECTED = {
    "integer": "whole numbers",
    "small integer": "whole numbers",
    "float": "numbers",
    "bytes": "strings",
    "bool": "true or false",
}
_FILLER: dict[str, Any] = {"integer": 0, "small integer": 0, "float": 0.0, "bool": False}


def decode_json_tensor(name: str, dtype: str, shape: tuple[int, ...], count: int, data: Any) -> WireTensor:
    """Turns the `data` of an input into a tensor.

    count: the product of `shape`. A null element is marked in `nulls`; a null in place of a row is a row of nulls.
    Raises InvalidInput naming the input for a wrong number of elements, a ragged list or a value of another kind.
    """
    if type(data) is not list:
        raise InvalidInput(f"input {name!r}: 'data' must be a list, got {type(data).__name__}", field=name)
    if WIRE_TYPES[dtype].family == "half":
        raise InvalidInput(f"input {name!r}: {dtype} has no form in JSON; send it as a binary tensor", field=name)
    flat, kinds = _flatten(name, shape, data)
    if len(flat) != count:
        raise element_count_error(name, shape, count, len(flat))
    return WireTensor(name, dtype, shape, *to_values(name, dtype, flat, kinds))


def to_values(
    name: str, dtype: str, flat: list[Any], kinds: set[type] | None = None
) -> tuple[np.ndarray | BytesValues, np.ndarray | None]:
    """Converts a flat list to the values of a dtype and a mask of its nulls (None when there are none)."""
    wire = WIRE_TYPES[dtype]
    if kinds is None:
        kinds = set(map(type, flat))
    if not kinds <= _ALLOWED[wire.family]:
        wrong = next(value for value in flat if type(value) not in _ALLOWED[wire.family])
        raise InvalidInput(
            f"input {name!r}: {dtype} takes {_EXPECTED[wire.family]}, got {str(wrong)[:40]!r} ({type(wrong).__name__})",
            field=name,
        )
    nulls = None
    if _NONE in kinds:
        nulls = np.fromiter((value is None for value in flat), np.bool_, len(flat))
        if wire.family != "bytes":
            filler = _FILLER[wire.family]
            flat = [filler if value is None else value for value in flat]
    if wire.family == "bytes":
        return _bytes_values(name, flat), nulls
    try:
        # A float that is too large is infinite, as in v1 requests and in training; a whole number that is larger than
        # any float raises.
        with np.errstate(over="ignore"):
            return np.array(flat, wire.numpy), nulls
    except OverflowError:
        limits = np.finfo(wire.numpy) if wire.family == "float" else np.iinfo(wire.numpy)
        low, high = int(limits.min), int(limits.max)  # Python compares these with any number exactly
        wrong = next((v for v in flat if not low <= v <= high), "a number")
        raise InvalidInput(
            f"input {name!r}: {str(wrong)[:40]} is outside {dtype}, which holds {limits.min} to {limits.max}",
            field=name,
        ) from None


def encode_json(name: str, dtype: str, values: np.ndarray) -> Any:
    """Returns an output's `data`, a flat array or list. Raises InvalidInput if JSON has no form for dtype or string."""
    if WIRE_TYPES[dtype].family == "half":
        raise InvalidInput(f"output {name!r}: {dtype} has no form in JSON; ask for binary_data", field=name)
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.dtype != object:
        return flat
    try:
        return [element.decode() for element in flat.tolist()]
    except UnicodeDecodeError:
        raise InvalidInput(
            f"output {name!r}: holds bytes that are no UTF-8, which JSON cannot carry; ask for binary_data", field=name
        ) from None


def _flatten(name: str, shape: tuple[int, ...], data: list[Any]) -> tuple[list[Any], set[type]]:
    kinds = set(map(type, data))
    for depth in range(1, len(shape)):
        null_rows_only = kinds == {_NONE} and len(data) == math.prod(shape[:depth]) != math.prod(shape)
        if list not in kinds and not null_rows_only:
            return data, kinds
        if len(data) != math.prod(shape[:depth]):
            raise InvalidInput(
                f"input {name!r}: 'data' has {len(data)} lists at depth {depth}, shape {list(shape)} says otherwise",
                field=name,
            )
        if kinds - {list, _NONE}:
            raise InvalidInput(f"input {name!r}: 'data' mixes lists and values at depth {depth}", field=name)
        width = shape[depth]
        wrong = {len(row) for row in data if row is not None} - {width}
        if wrong:
            raise InvalidInput(
                f"input {name!r}: 'data' holds a list of {min(wrong)} where shape {list(shape)} says {width}",
                field=name,
            )
        if _NONE in kinds:
            if sum(row is None for row in data) * width > MAX_NULL_ELEMENTS:
                raise InvalidInput(
                    f"input {name!r}: null rows of {width} elements are too many; send {name}.valid instead", field=name
                )
            null_row = [None] * width
            data = [null_row if row is None else row for row in data]
        data = list(chain.from_iterable(data))
        kinds = set(map(type, data))
    if list in kinds:
        raise InvalidInput(f"input {name!r}: 'data' is nested deeper than shape {list(shape)}", field=name)
    return data, kinds


def _bytes_values(name: str, flat: list[Any]) -> BytesValues:
    try:
        parts = [b"" if value is None else value.encode() for value in flat]
    except UnicodeEncodeError:
        raise InvalidInput(f"input {name!r}: holds a string that is not valid Unicode", field=name) from None
    return bytes_values(parts)


def bytes_values(parts: list[bytes]) -> BytesValues:
    """Joins a list of byte strings into one buffer with the offsets where each starts and ends."""
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    ends = np.cumsum(sizes, dtype=np.int64)
    return BytesValues(np.frombuffer(b"".join(parts), np.uint8), ends - sizes, ends)
