"""Columns from numpy, Python rows and wire bytes: right values, and refusals that name the place."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import InvalidInput
from storage.features import (
    BytesValues,
    Column,
    InputSpec,
    column_from_lists,
    column_from_numpy,
    column_from_rows,
)


def rows_of(column: Column) -> list[list[Any]]:
    values = column.values.tolist()
    offsets = (
        column.offsets.tolist() if column.offsets is not None else [column.width * r for r in range(column.rows + 1)]
    )
    return [values[start:end] for start, end in zip(offsets, offsets[1:], strict=False)]


def numbers_of(column: Column) -> np.ndarray:
    assert isinstance(column.values, np.ndarray)
    return column.values


def test_numpy_arrays_become_fixed_columns() -> None:
    column = column_from_numpy("INT64", np.array([[1, 2], [3, 4]], dtype=np.int32).T)
    assert (column.rows, column.width, column.dtype) == (2, 2, "INT64")
    assert rows_of(column) == [[1, 3], [2, 4]]
    assert numbers_of(column_from_numpy("FP32", np.array([1, 2], dtype=np.int16))).dtype == np.float32
    assert rows_of(column_from_numpy("BYTES", np.array(["a", "ö"]))) == [[b"a"], ["ö".encode()]]
    assert rows_of(column_from_numpy("BYTES", np.array([[b"a\0", b""]], dtype=object))) == [[b"a\0", b""]]


def test_a_view_of_the_right_dtype_is_not_copied() -> None:
    array = np.arange(4, dtype=np.int64).reshape(4, 1)
    assert np.shares_memory(numbers_of(column_from_numpy("INT64", array)), array)


@pytest.mark.parametrize(
    ("dtype", "array"),
    [
        ("INT64", np.array([1.0])),
        ("INT32", np.array([1], dtype=np.int64)),
        ("INT64", np.array([True])),
        ("FP32", np.array([True])),
        ("BOOL", np.array([1])),
        ("BYTES", np.array([1])),
        ("INT64", np.array(["1"])),
        ("INT64", np.zeros((1, 1, 1), dtype=np.int64)),
        ("INT64", np.array(3)),
        ("INT8", np.array([1])),
    ],
)
def test_arrays_that_do_not_fit_are_refused(dtype: str, array: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match="'x'") as caught:
        column_from_numpy(dtype, array, name="x")
    assert caught.value.field == "x"


def test_python_rows_follow_the_spec() -> None:
    fixed = column_from_rows(InputSpec(name="x", dtype="INT64"), [1, None, [3]])
    assert rows_of(fixed) == [[1], [0], [3]]
    assert fixed.valid is not None
    assert fixed.valid.tolist() == [1, 0, 1]
    wide = column_from_rows(InputSpec(name="x", dtype="BYTES", width=2), [["a", None], None])
    assert wide.valid is not None
    assert wide.valid.tolist() == [1, 0, 0, 0]
    lists = column_from_rows(InputSpec(name="x", dtype="UINT64", kind="list"), [[2**64 - 1, None, 1], None, []])
    assert rows_of(lists) == [[2**64 - 1, 1], [], []]
    assert lists.valid is not None
    assert lists.valid.tolist() == [1, 0, 1]
    floats = column_from_lists("FP32", [[1, None, 2.5]])
    np.testing.assert_array_equal(numbers_of(floats), np.array([1, np.nan, 2.5], dtype=np.float32))


@pytest.mark.parametrize(
    ("spec", "rows", "message"),
    [
        ({"dtype": "INT64"}, [1, "2"], "row 1: expected INT64, got str"),
        ({"dtype": "INT64"}, [1, 2.0], "row 1: expected INT64, got float"),
        ({"dtype": "INT64"}, [True], "row 0: expected INT64, got bool"),
        ({"dtype": "INT32"}, [0, 2**31], "row 1: 2147483648 does not fit INT32"),
        ({"dtype": "FP32"}, [10**400], "too large for a float"),
        ({"dtype": "BOOL"}, [1], "expected BOOL, got int"),
        ({"dtype": "BYTES"}, [3], "expected a string, got int"),
        ({"dtype": "INT64", "width": 2}, [[1, 2], [1]], "row 1: expected 2 values, got 1"),
        ({"dtype": "INT64", "width": 2}, [3], "row 0: expected a list of 2 values, got int"),
        ({"dtype": "INT64"}, [{"a": 1}], "row 0: expected INT64, got dict"),
        ({"dtype": "INT64", "kind": "list"}, [[1], 2], "row 1: expected a list, got int"),
        ({"dtype": "INT64", "kind": "list"}, [[1], [2, "a"]], "row 1: expected INT64, got str"),
        ({"dtype": "INT64", "kind": "list"}, [[1, [2]]], "row 0: expected INT64, got list"),
        ({"dtype": "BYTES", "kind": "list"}, ["ab"], "row 0: expected a list, got str"),
    ],
)
def test_python_rows_that_do_not_fit_are_refused(spec: dict[str, Any], rows: list[Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        column_from_rows(InputSpec(name="x", **spec), rows)
    assert caught.value.field == "x"


@given(st.lists(st.binary(max_size=9), max_size=6))
def test_wire_bytes_read_back(values: list[bytes]) -> None:
    wire = b"".join(struct.pack("<I", len(value)) + value for value in values)
    assert Column.wire_bytes(wire, len(values)).tolist() == values
    assert Column.wire_bytes(memoryview(wire), len(values)).tolist() == values


@given(st.binary(max_size=24), st.integers(-1, 5))
def test_any_wire_bytes_are_split_whole_or_refused(wire: bytes, count: int) -> None:
    try:
        values = Column.wire_bytes(wire, count, name="x")
    except InvalidInput:
        return
    assert b"".join(struct.pack("<I", len(value)) + value for value in values.tolist()) == wire
    assert len(values) == count


def test_a_claimed_count_allocates_nothing() -> None:
    with pytest.raises(InvalidInput, match="cannot lie in 8 bytes"):
        Column.wire_bytes(b"\0" * 8, 2**40, name="x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("INT8", 1, 1, np.zeros(1, np.int8)), "unknown dtype"),
        (("INT64", 1, 1, np.zeros(1, np.int32)), "values is int32, expected int64"),
        (("INT64", 1, 1, np.zeros((1, 1), np.int64)), "one-dimensional"),
        (("INT64", 2, 1, np.zeros(4, np.int64)[::2]), "C-contiguous"),
        (("INT64", 1, 1, [1]), "must be a numpy array, got list"),
        (("BYTES", 1, 1, np.zeros(1, np.uint8)), "needs BytesValues"),
        (("INT64", 1, 1, np.zeros(1, np.int64), np.zeros(2, np.int32)), "offsets is int32"),
        (("INT64", 1, 1, np.zeros(1, np.int64), None, np.zeros(1, np.int64)), "valid is int64"),
    ],
)
def test_a_column_of_wrong_arrays_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Column(*arguments)


def test_slices_keep_values_lengths_and_nulls() -> None:
    lists = column_from_lists("BYTES", [["a"], None, ["b", "c"], []])
    part = lists.slice(1, 3)
    assert rows_of(part) == [[], [b"b", b"c"]]
    assert part.valid is not None
    assert part.valid.tolist() == [0, 1]
    fixed = column_from_numpy("INT64", np.arange(6).reshape(3, 2)).slice(1, 2)
    assert rows_of(fixed) == [[2, 3]]
    with pytest.raises(InvalidInput, match="do not lie in 4"):
        lists.slice(2, 5)


def test_bytes_values_are_a_sequence() -> None:
    values = column_from_numpy("BYTES", np.array(["a", "bc"])).values
    assert isinstance(values, BytesValues)
    assert len(values) == 2
    assert values[1] == b"bc"
