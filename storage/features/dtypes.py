"""Defines the dtypes of raw inputs: KServe's names, numpy's dtypes, and which may replace which."""

from __future__ import annotations

import re
from typing import Literal, get_args

import numpy as np

Dtype = Literal["INT64", "INT32", "UINT64", "BYTES", "FP32", "FP64", "BOOL"]
# The type of a value inside the engine: every integer is an int64 (UINT64 as two's complement, BOOL as 0 or 1), every
# float a double.
ElementType = Literal["bytes", "int64", "float"]
# The meaning of the values of a training column, or of the values of its lists, whatever their width.
ColumnType = Literal["integer", "float", "string", "boolean", "timestamp", "time", "duration"]
# The column types that are times, which requests carry in microseconds.
TIMES = frozenset({"timestamp", "time", "duration"})
# The unit of integers that are times. Inside the engine, on the wire and in features every time is in microseconds.
TimeUnit = Literal["s", "ms", "us", "ns"]

DTYPES: tuple[str, ...] = get_args(Dtype)
INTEGERS = frozenset({"INT64", "INT32", "UINT64"})
FLOATS = frozenset({"FP32", "FP64"})
# Microseconds since 1970 fit neither 32 bits nor the 24 bits of a float32's significand.
TIME_DTYPES = ("INT64", "FP64")
NUMPY_DTYPES: dict[str, np.dtype[np.generic]] = {
    "INT64": np.dtype(np.int64),
    "INT32": np.dtype(np.int32),
    "UINT64": np.dtype(np.uint64),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BOOL": np.dtype(np.bool_),
}
# As long as any dtype holds, with leading zeros. int() alone reads 1_000 and digits of other scripts.
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_WIRE_DTYPES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


def element_type(dtype: str) -> ElementType:
    """Returns the type that values of this dtype have inside the engine."""
    if dtype == "BYTES":
        return "bytes"
    return "float" if dtype in FLOATS else "int64"


def accepts(declared: str, sent: str) -> bool:
    """Returns whether an input declared as `declared` takes a tensor of dtype `sent`."""
    if declared in INTEGERS:
        return sent in INTEGERS
    if declared in FLOATS:
        return sent in FLOATS or sent in INTEGERS
    return declared == sent


def wire_dtype(dtype: np.dtype[np.generic]) -> str | None:
    """Returns KServe's name of a numpy dtype, None when no raw input has it."""
    return _WIRE_DTYPES.get(dtype)


def integer_range(dtype: str) -> tuple[int, int]:
    """Returns the smallest and the largest integer that a dtype holds."""
    bits = 32 if dtype == "INT32" else 64
    return (0, 2**bits - 1) if dtype == "UINT64" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def parse_integer(text: str, dtype: str) -> int | None:
    """Returns the whole number that ASCII digits say; None for another text, and beyond the dtype's range."""
    if not _WHOLE.fullmatch(text):
        return None
    low, high = integer_range(dtype)
    number = int(text)
    return number if low <= number <= high else None
