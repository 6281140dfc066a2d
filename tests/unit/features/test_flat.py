"""Columns that travel as bytes are the columns that were sent, and bytes that are none are refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage._features import BlockLayout
from storage.errors import InvalidInput
from storage.features import BytesValues, Column, FeatureBatch, FeatureEngine, FeatureSpec, can_join, column_from_rows
from storage.features.dtypes import DTYPES, NUMPY_DTYPES
from storage.features.flat import FlatColumns, Layout, flatten
from storage.features.joining import is_row_by_row
from tests.support.examples import examples

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "INT64": st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
    "INT32": st.integers(-(2**31), 2**31 - 1),
    "UINT64": st.integers(0, 2**64 - 1),
    "BYTES": st.binary(max_size=9),
    "FP32": st.floats(-1, 1, width=32) | st.just(math.nan),
    "FP64": st.floats(-1, 1) | st.just(math.nan),
    "BOOL": st.booleans(),
}
FORMS: dict[str, dict[str, Any]] = {
    "one": {},
    "wide": {"width": 3},
    "list": {"kind": "list", "max_length": 4},
    "user": {"side": "user"},
    "user_list": {"kind": "list", "max_length": 4, "side": "user"},
}


def _transforms(dtype: str) -> list[dict[str, Any]]:
    if dtype == "BYTES":
        return [{"op": "hash", "seed": 1, "salt": "s"}]
    return [{"op": "bucketise", "boundaries": [-0.5, 0.5]}] if dtype in ("FP32", "FP64") else []


SPEC = FeatureSpec.model_validate(
    {
        "inputs": [
            {"name": f"{dtype}.{form}", "dtype": dtype, "missing": "null", **options}
            for dtype in DTYPES
            for form, options in FORMS.items()
        ],
        "features": [
            {
                "name": f"{dtype}.{form}",
                "inputs": [f"{dtype}.{form}"],
                "transforms": _transforms(dtype),
                "output": "ids",
                "table": "t",
            }
            for dtype in DTYPES
            for form in FORMS
        ],
    }
)
ENGINE = FeatureEngine(SPEC)
PLACES = {entry.name: place for place, entry in enumerate(SPEC.inputs)}
NUMBERS = [entry for entry in SPEC.inputs if entry.dtype != "BYTES" and entry.kind == "fixed" and entry.side == "item"]


@st.composite
def requests(draw: st.DrawFn) -> tuple[dict[str, Column], int]:
    """Draws some inputs in any order, with nulls or without, users in one row or in all."""
    batch = draw(st.integers(0, 4))
    columns = {}
    for entry in draw(st.lists(st.sampled_from(SPEC.inputs), min_size=1, max_size=6, unique_by=lambda each: each.name)):
        value = VALUES[entry.dtype]
        if entry.kind == "list":
            value = st.lists(value, max_size=4)
        elif entry.width > 1:
            value = st.lists(value, min_size=entry.width, max_size=entry.width)
        if draw(st.booleans()):
            value = st.none() | value
        rows = 1 if entry.side == "user" and draw(st.booleans()) else batch
        columns[entry.name] = column_from_rows(entry, draw(st.lists(value, min_size=rows, max_size=rows)))
    return columns, batch


def sent(columns: Mapping[str, Column], batch: int) -> FlatColumns:
    code, data = flatten(columns, batch, PLACES)
    return FlatColumns(Layout.parse(code, SPEC.inputs), np.frombuffer(data, np.uint8), batch)


def parts(column: Column) -> list[Any]:
    """Returns a column's content in a form that can be compared, NaN by its bits."""
    values = column.values.tolist() if isinstance(column.values, BytesValues) else column.values.tobytes()
    offsets = None if column.offsets is None else column.offsets.tolist()
    valid = None if column.valid is None else column.valid.astype(bool).tolist()
    return [column.dtype, column.rows, column.width, values, offsets, valid]


def features(columns: Mapping[str, Column], batch: int) -> dict[str, Any]:
    return lists_of(ENGINE.run(columns, batch))


def lists_of(made: FeatureBatch) -> dict[str, Any]:
    return {name: (jagged.values.tolist(), jagged.offsets.tolist()) for name, jagged in made.ids.items()}


@settings(max_examples=examples(300))
@given(requests())
def test_what_arrives_is_what_was_sent_and_gives_the_same_features(request: tuple[dict[str, Column], int]) -> None:
    columns, batch = request
    flat = sent(columns, batch)
    assert list(flat) == list(columns)
    assert len(flat) == len(columns)
    for name, column in columns.items():
        assert parts(flat[name]) == parts(column)
    assert "nobody" not in flat
    assert is_row_by_row(flat, batch) == is_row_by_row(columns, batch)
    if batch:
        assert features(flat, batch) == features(columns, batch)


@pytest.mark.parametrize("entry", SPEC.inputs, ids=lambda entry: entry.name)
@pytest.mark.parametrize("batch", [0, 1, 3])
def test_every_dtype_travels_in_every_form(entry: Any, batch: int) -> None:
    one: Any = {"BYTES": b"ab", "FP32": 0.5, "FP64": 0.25, "BOOL": True}.get(entry.dtype, 7)
    row = [one] * 3 if entry.kind == "list" or entry.width > 1 else one
    for rows in {batch, 1} if entry.side == "user" else {batch}:
        for given_rows in ([row] * rows, [None] * rows):
            columns = {entry.name: column_from_rows(entry, given_rows)}
            flat = sent(columns, batch)
            assert parts(flat[entry.name]) == parts(columns[entry.name])
            if batch:
                assert features(flat, batch) == features(columns, batch)


def test_plain_numbers_are_no_more_than_their_bytes() -> None:
    columns = {
        "FP32.wide": Column("FP32", 2, 3, np.arange(6, dtype=np.float32)),
        "BOOL.one": Column("BOOL", 2, 1, np.array([True, False])),
        "INT64.one": Column("INT64", 2, 1, np.array([7, 8], np.int64)),
    }
    flat = sent(columns, 2)
    assert flat.data.tobytes() == b"".join(column.values.tobytes() for column in columns.values())  # type: ignore[union-attr]
    assert flat.layout.is_plain
    # An array that lies across the borders of its numbers is read all the same.
    assert flat["INT64.one"].values.tolist() == [7, 8]
    assert flat["INT64.one"].values.flags.aligned  # type: ignore[union-attr]


@settings(max_examples=examples(100))
@given(
    names=st.lists(st.sampled_from(range(len(NUMBERS))), min_size=1, max_size=5, unique=True),
    batches=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    seed=st.integers(0, 2**32 - 1),
)
def test_plain_requests_are_joined_as_ordinary_columns_are(names: list[int], batches: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    made: list[dict[str, Column]] = []
    for batch in batches:
        columns = {}
        for entry in [NUMBERS[place] for place in names]:
            values = rng.integers(0, 2, batch * entry.width).astype(NUMPY_DTYPES[entry.dtype])
            columns[entry.name] = Column(entry.dtype, batch, entry.width, values)
        made.append(columns)
    layout = Layout.parse(flatten(made[0], batches[0], PLACES)[0], SPEC.inputs)
    flat = [
        FlatColumns(layout, np.frombuffer(flatten(columns, batch, PLACES)[1], np.uint8), batch)
        for columns, batch in zip(made, batches, strict=True)
    ]
    assert all(can_join(flat[0], other) for other in flat)
    joined = ENGINE.run_joined(list(zip(flat, batches, strict=True)))
    assert joined.batch == sum(batches)
    assert lists_of(joined) == lists_of(ENGINE.run_joined(list(zip(made, batches, strict=True))))
    # The bytes may be reused once the features are made.
    assert not any(np.shares_memory(bags.values, each.data) for bags in joined.ids.values() for each in flat)


def test_requests_of_other_layouts_are_joined_one_column_at_a_time() -> None:
    plain = sent({"INT64.one": Column("INT64", 1, 1, np.array([1], np.int64))}, 1)
    nulls = sent({"INT64.one": Column("INT64", 1, 1, np.array([2], np.int64), None, np.zeros(1, np.uint8))}, 1)
    own = {"INT64.one": Column("INT64", 1, 1, np.array([3], np.int64))}
    assert can_join(plain, nulls)
    assert can_join(plain, own)
    for requests in ([plain, nulls, own], [nulls, plain, own]):
        joined = ENGINE.run_joined([(each, 1) for each in requests]).ids["INT64.one"]
        assert sorted(joined.values.tolist()) == [1, 3]
        assert joined.lengths().tolist() == [int(each is not nulls) for each in requests]


@settings(max_examples=examples(400))
@given(data=st.data())
def test_a_layout_that_is_none_and_bytes_that_do_not_fit_are_refused(data: st.DataObject) -> None:
    columns, batch = data.draw(requests())
    code, content = map(bytearray, flatten(columns, batch, PLACES))
    for _ in range(data.draw(st.integers(1, 3))):
        target = data.draw(st.sampled_from([code, content]))
        change = data.draw(st.sampled_from(["flip", "cut", "grow"]))
        if change == "grow" or not target:
            target += data.draw(st.binary(min_size=1, max_size=9))
        elif change == "cut":
            del target[data.draw(st.integers(0, len(target) - 1)) :]
        else:
            target[data.draw(st.integers(0, len(target) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    batch = data.draw(st.sampled_from([batch, batch + 1, 0, 2**31]))
    try:
        flat = FlatColumns(Layout.parse(bytes(code), SPEC.inputs), np.frombuffer(bytes(content), np.uint8), batch)
        assert set(flat) == set(dict(flat))
        if 0 < batch < 100:
            ENGINE.run(flat, batch)
    except InvalidInput:
        pass


@pytest.mark.parametrize(
    "code", [b"x", b"\x00\x00\x00", b"\xff\xff\x00\x00", b"\x00\x00\x63\x00", b"\x00\x00\x00\x08", b"\x00\x00\x00\xff"]
)
def test_a_layout_of_unknown_inputs_dtypes_or_forms_is_refused(code: bytes) -> None:
    with pytest.raises(InvalidInput, match="a layout"):
        Layout.parse(code, SPEC.inputs)


def test_plain_bytes_of_another_length_are_refused_before_anything_is_read() -> None:
    code, content = flatten({"INT64.one": Column("INT64", 2, 1, np.zeros(2, np.int64))}, 2, PLACES)
    layout = Layout.parse(code, SPEC.inputs)
    for wrong, batch in ((content[1:], 2), (content + b"x", 2), (content, 1), (content, 3), (b"", 1)):
        with pytest.raises(InvalidInput, match="were expected"):
            FlatColumns(layout, np.frombuffer(wrong, np.uint8), batch)


ROW = 9
FORMED = BlockLayout([(0, DTYPES.index("INT64"), 1), (1, DTYPES.index("BOOL"), 1)], len(SPEC.inputs))


def u8(size: int) -> np.ndarray:
    return np.arange(size, dtype=np.uint8)


@pytest.mark.parametrize(
    ("blocks", "batches"),
    [
        ([u8(ROW - 1)], [1]),
        ([u8(ROW + 1)], [1]),
        ([u8(ROW)], [2]),
        ([u8(ROW)], [-1]),
        ([u8(0)], [1]),
        ([u8(ROW), u8(0)], [1, 1]),
        ([u8(ROW)], [2**62]),
        ([u8(0), u8(0)], [2**62, 2**62]),
        ([u8(0)], [2**63 - 1]),
    ],
)
def test_blocks_that_do_not_fit_their_rows_are_refused(blocks: Any, batches: Any) -> None:
    with pytest.raises(InvalidInput, match=r"were expected|a batch of") as caught:
        ENGINE._program.run_blocks(FORMED, blocks, batches)
    assert caught.value.field == ""


def test_blocks_of_another_kind_or_number_are_refused() -> None:
    for block in (np.zeros(ROW, np.int8), np.zeros(2 * ROW, np.uint8)[::2], np.zeros((1, ROW), np.uint8), b"x" * ROW):
        with pytest.raises(TypeError) if not isinstance(block, bytes) else pytest.raises(InvalidInput):
            ENGINE._program.run_blocks(FORMED, [block, u8(1)], [1, 1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="one number of rows a block"):
        ENGINE._program.run_blocks(FORMED, [u8(ROW)], [])
    with pytest.raises(ValueError, match="a layout of another program"):
        ENGINE._program.run_blocks(BlockLayout([], 3), [u8(0)], [0])


@pytest.mark.parametrize(
    "columns", [[(99, 0, 1)], [(0, 0, 1), (0, 0, 1)], [(0, DTYPES.index("BYTES"), 1)], [(0, 0, 0)], [(0, 0, 2**40)]]
)
def test_a_layout_of_no_numbers_of_the_program_is_refused(columns: list[tuple[int, int, int]]) -> None:
    with pytest.raises(ValueError, match="a layout"):
        BlockLayout(columns, len(SPEC.inputs))


def test_a_block_of_an_input_that_the_engine_does_not_know_is_refused() -> None:
    other = FeatureSpec.model_validate(
        {
            "inputs": [{"name": "INT64.two", "dtype": "INT64"}],
            "features": [{"name": "f", "inputs": ["INT64.two"], "output": "ids", "table": "t"}],
        }
    )
    code, content = flatten({"INT64.two": Column("INT64", 1, 1, u8(8).view(np.int64))}, 1, {"INT64.two": 0})
    flat = FlatColumns(Layout.parse(code, other.inputs), np.frombuffer(content, np.uint8), 1)
    assert FeatureEngine(other).run(flat, 1).batch == 1
    with pytest.raises(InvalidInput, match=r"unknown input 'INT64\.two'; did you mean 'INT64\.one'") as caught:
        ENGINE.run(flat, 1)
    assert caught.value.field == "INT64.two"
