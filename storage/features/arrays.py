"""Makes columns from numpy arrays: fixed ones, and lists as flat values with offsets."""

from __future__ import annotations

from typing import Any

import numpy as np

from storage.errors import InvalidInput
from storage.features.columns import Array, BytesValues, Column, Values
from storage.features.dtypes import DTYPES, NUMPY_DTYPES
from storage.features.python_rows import bytes_values


def column_from_numpy(dtype: str, array: Array, valid: Array | None = None, *, name: str = "") -> Column:
    """Makes a fixed column. array: (B,) or (B, W), any dtype that casts safely to `dtype`. valid: the same shape."""
    array = np.asarray(array)
    if array.ndim not in (1, 2):
        raise InvalidInput(f"{_of(name)}expected shape [B] or [B, width], got {list(array.shape)}", field=name)
    rows, width = array.shape[0], 1 if array.ndim == 1 else array.shape[1]
    mask = None
    if valid is not None:
        mask = _mask(valid, rows * width, f"[{rows}, {width}]", name)
    return Column(dtype, rows, width, flat_values(dtype, array, name), None, mask)


def column_from_jagged(
    dtype: str, values: Values, offsets: Array, valid: Array | None = None, *, name: str = ""
) -> Column:
    """Makes a list column from flat values. values: (n,); offsets: (B + 1,); valid: (B,)."""
    if not isinstance(values, BytesValues):
        values = flat_values(dtype, np.asarray(values), name)
    offsets = np.ascontiguousarray(_integers(offsets, "offsets", name))
    if offsets.ndim != 1 or len(offsets) < 1:
        raise InvalidInput(f"{_of(name)}offsets must have shape [B + 1], got {list(offsets.shape)}", field=name)
    rows = len(offsets) - 1
    return Column(dtype, rows, 1, values, offsets, None if valid is None else _mask(valid, rows, f"[{rows}]", name))


def flat_values(dtype: str, array: Array, name: str) -> Values:
    """Returns an array as the values of a column of `dtype`. Raises InvalidInput when the cast would lose something."""
    if dtype not in DTYPES:
        raise InvalidInput(f"{_of(name)}unknown dtype {dtype!r}, expected one of {', '.join(DTYPES)}", field=name)
    if dtype == "BYTES":
        if array.dtype.kind not in "OSU" and array.size:
            raise InvalidInput(f"{_of(name)}expected BYTES, got an array of {array.dtype}", field=name)
        return bytes_values(array.reshape(-1).tolist(), name)
    target = NUMPY_DTYPES[dtype]
    if array.dtype != target:
        if not np.can_cast(array.dtype, target, "safe") or (array.dtype.kind == "b" and dtype != "BOOL"):
            raise InvalidInput(f"{_of(name)}expected {dtype}, got an array of {array.dtype}", field=name)
        array = array.astype(target)
    return np.ascontiguousarray(array).reshape(-1)


def _integers(array: Array, what: str, name: str) -> Array:
    array = np.asarray(array)
    if array.dtype.kind not in "iu":
        raise InvalidInput(f"{_of(name)}{what} must be integers, got {array.dtype}", field=name)
    if array.dtype == np.uint64 and np.any(array > np.uint64(2**63 - 1)):
        raise InvalidInput(f"{_of(name)}{what} holds a value above 2^63 - 1", field=name)
    return array.astype(np.int64, copy=False)


def _mask(valid: Any, count: int, shape: str, name: str) -> Array:
    mask = np.asarray(valid)
    if mask.dtype != np.bool_ and mask.dtype != np.uint8:
        raise InvalidInput(f"{_of(name)}valid must be BOOL, got {mask.dtype}", field=name)
    if mask.size != count or mask.ndim > 2:
        raise InvalidInput(f"{_of(name)}valid: expected shape {shape}, got {list(mask.shape)}", field=name)
    return np.ascontiguousarray(mask).reshape(-1)


def _of(name: str) -> str:
    return f"input {name!r}: " if name else ""
