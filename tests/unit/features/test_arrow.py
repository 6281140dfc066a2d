"""Arrow arrays of every layout give the column that the same values in Python give."""

from __future__ import annotations

import datetime
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import InvalidInput
from storage.features import (
    Column,
    InputSpec,
    column_from_arrow,
    column_from_lists,
    column_from_rows,
)

WIDE = pa.list_(pa.int64(), 2)


def same(column: Column, expected: Column) -> None:
    """Equal values at valid places; the values under a null do not matter."""
    assert (column.rows, column.width) == (expected.rows, expected.width)
    assert python_rows(column) == python_rows(expected)


def python_rows(column: Column) -> list[Any]:
    values = column.values.tolist()
    if column.offsets is None:
        flags = [1] * len(values) if column.valid is None else column.valid.tolist()
        return [value if flag else None for value, flag in zip(values, flags, strict=True)]
    flags = [1] * column.rows if column.valid is None else column.valid.tolist()
    offsets = column.offsets.tolist()
    rows = [values[a:b] for a, b in zip(offsets, offsets[1:], strict=False)]
    return [[repr(value) for value in row] if flag else None for row, flag in zip(rows, flags, strict=True)]


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_integers_of_every_width(kind: Any) -> None:
    spec = InputSpec(name="x", dtype="INT64")
    array = pa.array([9, 1, None, 3, 9], kind)[1:4]
    same(column_from_arrow(array, spec), column_from_rows(spec, [1, None, 3]))
    lists = pa.array([[9], [1, 2], None, [], [3, None]], pa.list_(kind))[1:]
    same(
        column_from_arrow(lists, spec.model_copy(update={"kind": "list"})),
        column_from_lists("INT64", [[1, 2], None, [], [3]]),
    )


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64(), pa.int32()], ids=str)
def test_floats_and_integers_feed_floats(kind: Any) -> None:
    spec = InputSpec(name="x", dtype="FP64")
    column = column_from_arrow(pa.array([1, None, 2], pa.float32()).cast(kind), spec)
    assert python_rows(column) == [1, None, 2]
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), pa.array([1, None, 2], pa.float32()).cast(kind))
    column = column_from_arrow(lists, spec.model_copy(update={"kind": "list"}))
    assert isinstance(column.values, np.ndarray)
    np.testing.assert_array_equal(column.values, [1, np.nan, 2])


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_strings_of_every_layout(kind: Any) -> None:
    spec = InputSpec(name="x", dtype="BYTES")
    array = pa.array(["zz", "a", None, "", "bö", "zz"]).cast(kind)[1:5]
    same(column_from_arrow(array, spec), column_from_rows(spec, ["a", None, "", "bö"]))
    chunked = pa.chunked_array([array[:1], array[1:1], array[1:]])
    same(column_from_arrow(chunked, spec), column_from_rows(spec, ["a", None, "", "bö"]))


@pytest.mark.parametrize("outer", [pa.list_, pa.large_list])
@pytest.mark.parametrize("inner", [pa.string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_lists_of_strings(outer: Any, inner: Any) -> None:
    spec = InputSpec(name="x", dtype="BYTES", kind="list")
    values = pa.array(["z", "a", None, "b", "c", "z"]).cast(inner)
    where = pa.array([0, 1, 4, 4, 5, 6], pa.int32() if outer is pa.list_ else pa.int64())
    build = pa.ListArray if outer is pa.list_ else pa.LargeListArray
    array = build.from_arrays(where, values)[1:4]
    same(column_from_arrow(array, spec), column_from_lists("BYTES", [["a", "b"], [], ["c"]]))


def test_fixed_size_lists_feed_lists_and_wide_inputs() -> None:
    array = pa.array([[9, 9], [1, 2], None, [3, None]], WIDE)[1:]
    lists = column_from_arrow(array, InputSpec(name="x", dtype="INT64", kind="list"))
    same(lists, column_from_lists("INT64", [[1, 2], None, [3]]))
    spec = InputSpec(name="x", dtype="INT64", width=2)
    wide = column_from_rows(spec, [[1, 2], None, [3, None]])
    same(column_from_arrow(array, spec), wide)
    same(column_from_arrow(array.cast(pa.list_(pa.int64())), spec), wide)
    text = InputSpec(name="x", dtype="BYTES", width=2)
    rows = [["a", None], None, ["b", "c"]]
    same(column_from_arrow(pa.array(rows), text), column_from_rows(text, rows))


def test_booleans_dates_and_columns_of_nulls() -> None:
    bools = InputSpec(name="x", dtype="BOOL")
    same(
        column_from_arrow(pa.array([None, True, False, None])[1:], bools), column_from_rows(bools, [True, False, None])
    )
    integers = InputSpec(name="x", dtype="INT64")
    assert python_rows(column_from_arrow(pa.nulls(2), integers)) == [None, None]
    lists = integers.model_copy(update={"kind": "list"})
    assert python_rows(column_from_arrow(pa.nulls(1), lists)) == [None]
    assert python_rows(column_from_arrow(pa.array([[None], []]), lists)) == [[], []]
    assert column_from_arrow(pa.chunked_array([], pa.int64()), integers).rows == 0


@pytest.mark.parametrize(
    ("array", "spec", "message"),
    [
        (pa.array([1.5]), {"dtype": "INT64"}, "'c' is double, which cannot feed the input 'x' of dtype INT64"),
        (pa.array(["a"]), {"dtype": "INT64"}, "cannot feed"),
        (pa.array([1]), {"dtype": "BYTES"}, "cannot feed"),
        (pa.array([True]), {"dtype": "INT64"}, "cannot feed"),
        (pa.array([1]), {"dtype": "INT64", "kind": "list"}, "is a list"),
        (pa.array([[1]]), {"dtype": "INT64"}, "use kind: list"),
        (pa.array([[1, 2], [1]]), {"dtype": "INT64", "width": 2}, "row 1: 1 values, expected 2"),
        (pa.array([1]), {"dtype": "INT64", "width": 2}, "expected lists"),
        (pa.array([{"a": 1}]), {"dtype": "INT64"}, "cannot feed"),
        *(
            (
                pa.array([], kind),
                {"dtype": "INT64", **spec},
                f"column 'c' is {re.escape(str(kind))}, which cannot feed the input 'x': a row holds one value",
            )
            for kind in (
                pa.list_(pa.list_(pa.int64())),
                pa.large_list(pa.list_(pa.int64(), 2)),
                pa.list_(pa.struct([("a", pa.int64())])),
                pa.map_(pa.string(), pa.int64()),
            )
            for spec in ({}, {"kind": "list"}, {"width": 2})
        ),
    ],
)
def test_arrow_types_that_do_not_fit_are_refused(array: Any, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        column_from_arrow(array, InputSpec(name="x", column="c", **spec))
    assert caught.value.field == "x"


@given(
    st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.text(max_size=4)), max_size=4)), max_size=6),
    st.integers(0, 3),
)
def test_sliced_lists_of_strings_agree_with_python(rows: list[Any], start: int) -> None:
    spec = InputSpec(name="x", dtype="BYTES", kind="list")
    array = pa.array(rows, pa.list_(pa.string()))[start:]
    same(column_from_arrow(array, spec), column_from_lists("BYTES", rows[start:]))


def test_flat_numbers_and_strings_are_not_copied() -> None:
    numbers = pa.array(range(10), pa.int64())
    column = column_from_arrow(numbers[2:], InputSpec(name="x", dtype="INT64"))
    assert column.values.__array_interface__["data"][0] == numbers.buffers()[1].address + 16  # type: ignore[union-attr]
    text = pa.array(["aa", "bb"])
    strings = column_from_arrow(text, InputSpec(name="x", dtype="BYTES"))
    assert strings.values.data.__array_interface__["data"][0] == text.buffers()[2].address  # type: ignore[union-attr]


DAY_US = 86_400_000_000


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.date32(), datetime.date(1969, 12, 31), -DAY_US),
        (pa.date64(), datetime.date(2026, 1, 2), 20_455 * DAY_US),
        (pa.timestamp("s"), 86_401, DAY_US + 1_000_000),
        (pa.timestamp("ms"), -1, -1_000),
        (pa.timestamp("us"), 2**63 - 1, 2**63 - 1),
        (pa.timestamp("us", tz="Europe/Berlin"), datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC), DAY_US),
        (pa.timestamp("ns"), 1_999, 1),
        (pa.timestamp("ns"), -1, -1),
        (pa.time32("s"), datetime.time(0, 0, 2), 2_000_000),
        (pa.time64("ns"), 1_001, 1),
        (pa.duration("ms"), 5, 5_000),
    ],
    ids=str,
)
def test_every_time_is_in_microseconds(kind: Any, value: Any, expected: int) -> None:
    spec = InputSpec(name="x", dtype="INT64")
    assert python_rows(column_from_arrow(pa.array([None, value], kind), spec)) == [None, expected]
    lists = pa.array([[value], [], None], pa.list_(kind))
    column = column_from_arrow(lists, spec.model_copy(update={"kind": "list"}))
    assert python_rows(column) == [[repr(expected)], [], None]


@pytest.mark.parametrize(("unit", "expected"), [("s", 7_000_000), ("ms", 7_000), ("us", 7), ("ns", 0)])
def test_integers_with_a_unit_are_the_times_that_they_count(unit: Any, expected: int) -> None:
    spec = InputSpec(name="x", dtype="INT64", unit=unit)
    for kind in INTEGERS:
        assert python_rows(column_from_arrow(pa.array([7, None], kind), spec)) == [expected, None]
    assert python_rows(column_from_arrow(pa.array([1], pa.timestamp("s")), spec)) == [1_000_000]
    assert python_rows(column_from_arrow(pa.nulls(1), spec)) == [None]
    with pytest.raises(InvalidInput, match=r"column 'x' is double, but the input 'x' has the unit .*expected integers"):
        column_from_arrow(pa.array([1.5]), spec)


@pytest.mark.parametrize(
    ("array", "unit"),
    [
        (pa.array([0, 2**63 // 10**6 + 1], pa.timestamp("s")), None),
        (pa.array([-(2**63) // 1000 - 1], pa.timestamp("ms")), None),
        (pa.array([2**31 - 1], pa.int32()).view(pa.date32()), None),
        (pa.array([2**63], pa.uint64()), "us"),
    ],
)
def test_a_time_that_does_not_fit_is_refused_with_its_value(array: pa.Array, unit: Any) -> None:
    with pytest.raises(InvalidInput, match=r"column 'c': the time -?\d+ \(\w+\) does not fit 64 bits of microseconds"):
        column_from_arrow(array, InputSpec(name="x", column="c", dtype="INT64", unit=unit))


@pytest.mark.parametrize("dtype", ["INT32", "FP32", "UINT64", "BYTES"])
def test_times_need_a_dtype_that_holds_them(dtype: Any) -> None:
    with pytest.raises(InvalidInput, match="a time is in microseconds and needs the dtype INT64 or FP64"):
        column_from_arrow(pa.array([1], pa.timestamp("us")), InputSpec(name="x", dtype=dtype))
    with pytest.raises(ValueError, match="`unit` is for times"):
        InputSpec(name="x", dtype=dtype, unit="ms")
