"""Tests properties of a run other than its values: broadcasting, refusals that name a field, threads, memory."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from storage.errors import InvalidInput
from storage.features import (
    BytesValues,
    Column,
    FeatureBatch,
    FeatureEngine,
    FeatureSpec,
    Jagged,
    collision_report,
    column_from_lists,
    column_from_numpy,
    concat_batches,
    pack_columns,
    unpack_columns,
)

SPEC = FeatureSpec.parse(
    {
        "inputs": [
            {"name": "user", "dtype": "UINT64", "side": "user"},
            {"name": "tags", "dtype": "BYTES", "kind": "list", "side": "user", "max_length": 4},
            {"name": "item", "dtype": "INT64"},
            {"name": "price", "dtype": "FP32", "width": 2, "missing": "null"},
        ],
        "features": [
            {"name": "user", "inputs": ["user"], "output": "ids", "table": "u"},
            {
                "name": "tags",
                "inputs": ["tags"],
                "output": "ids",
                "table": "t",
                "transforms": [{"op": "hash", "buckets": 50}],
            },
            {"name": "item", "inputs": ["item"], "output": "ids", "table": "i"},
            {
                "name": "pair",
                "inputs": ["item", "tags"],
                "output": "ids",
                "table": "p",
                "transforms": [{"op": "cross", "buckets": 20}],
            },
            {"name": "price", "inputs": ["price"], "output": "dense", "transforms": [{"op": "clip", "max": 9}]},
        ],
    }
)
ENGINE = FeatureEngine(SPEC)


def request(items: int = 3, users: int = 1) -> dict[str, Column]:
    return {
        "user": column_from_numpy("UINT64", np.full((users, 1), 2**64 - 1, dtype=np.uint64)),
        "tags": column_from_lists("BYTES", [["a", "b"]] * users),
        "item": column_from_numpy("INT64", np.arange(items)),
        "price": column_from_numpy("FP32", np.tile(np.array([1.5, 20.0], np.float32), (items, 1))),
    }


def assert_equal(one: FeatureBatch, two: FeatureBatch) -> None:
    assert one.batch == two.batch
    assert one.dense.keys() == two.dense.keys()
    assert one.ids.keys() == two.ids.keys()
    for name, array in one.dense.items():
        np.testing.assert_array_equal(array, two.dense[name])
    for name, jagged in one.ids.items():
        np.testing.assert_array_equal(jagged.values, two.ids[name].values)
        np.testing.assert_array_equal(jagged.offsets, two.ids[name].offsets)


def test_one_user_row_gives_what_repeated_rows_give() -> None:
    assert_equal(ENGINE.run(request(users=1), 3), ENGINE.run(request(users=3), 3))
    assert ENGINE.run(request(), 3).ids["user"].values.tolist() == [-1, -1, -1]


def test_results_have_the_promised_dtypes_and_are_the_callers_own() -> None:
    columns = request()
    result = ENGINE.run(columns, 3)
    assert result.dense["dense"].dtype == np.float32
    assert result.dense["dense"].tolist() == [[1.5, 9.0]] * 3
    for jagged in result.ids.values():
        assert jagged.values.dtype == jagged.offsets.dtype == np.int64
        assert len(jagged.offsets) == 4
    result.ids["item"].values[:] = 7
    assert columns["item"].values.tolist() == [0, 1, 2]


def test_one_array_keeps_the_run_alive() -> None:
    values = ENGINE.run(request(1000), 1000).ids["item"].values
    gc.collect()
    for _ in range(10):
        ENGINE.run(request(1000), 1000)
    assert values.tolist() == list(range(1000))


def test_a_missing_input_that_may_be_missing_gives_zeros() -> None:
    columns = request()
    del columns["price"]
    assert ENGINE.run(columns, 3).dense["dense"].tolist() == [[0.0, 0.0]] * 3


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"item": None}, "item", "input 'item' is missing"),
        ({"itm": column_from_numpy("INT64", np.zeros(3, int))}, "itm", "unknown input 'itm'; did you mean 'item'"),
        ({"item": column_from_numpy("INT64", np.zeros(1, int))}, "item", "has 1 row, the batch has 3; only inputs of"),
        ({"user": column_from_numpy("INT64", np.zeros(2, int))}, "user", "has 2 rows, the batch has 3"),
        ({"item": column_from_numpy("FP32", np.zeros(3, np.float32))}, "item", "expected INT64, got FP32"),
        ({"item": column_from_numpy("INT64", np.zeros((3, 2), int))}, "item", "expected width 1, got 2"),
        ({"item": column_from_lists("INT64", [[1]] * 3)}, "item", "got a list"),
        ({"tags": column_from_lists("BYTES", [["a"] * 5])}, "tags", "row 0: has 5 values, max_length is 4"),
        ({"price": column_from_numpy("FP64", np.full((3, 2), -np.inf))}, "price", "not a finite float32"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_by_name(changes: dict[str, Any], field: str, message: str) -> None:
    columns = {name: column for name, column in (request() | changes).items() if column is not None}
    with pytest.raises(InvalidInput, match=message) as caught:
        ENGINE.run(columns, 3)
    assert caught.value.field == field


def test_a_wrong_batch_is_refused() -> None:
    for batch in (-1, 2**40):
        with pytest.raises(InvalidInput, match="a batch of"):
            ENGINE.run(request(), batch)


def test_an_input_with_a_strange_name_is_still_named() -> None:
    spec = FeatureSpec.parse(
        {
            "inputs": [{"name": "größe {}%s", "dtype": "INT64"}],
            "features": [{"name": "f", "inputs": ["größe {}%s"], "output": "ids", "table": "t"}],
        }
    )
    with pytest.raises(InvalidInput) as caught:
        FeatureEngine(spec).run({}, 1)
    assert caught.value.field == "größe {}%s"


def test_integers_of_every_wire_dtype_are_one() -> None:
    expected = ENGINE.run(request(), 3)
    for dtype, kind in (("INT32", np.int32), ("UINT64", np.uint64)):
        assert_equal(ENGINE.run(request() | {"item": column_from_numpy(dtype, np.arange(3, dtype=kind))}, 3), expected)


def test_many_threads_share_one_engine() -> None:
    columns, expected = request(200), ENGINE.run(request(200), 200)
    with ThreadPoolExecutor(8) as pool:
        for result in pool.map(lambda _: ENGINE.run(columns, 200), range(200)):
            assert_equal(result, expected)


def test_a_run_lets_other_threads_work() -> None:
    """If a run held the GIL, this thread would stand still during the whole of the other's run, in every try.

    On a busy machine it may stand still for other reasons, so one try of five is enough.
    """
    columns = request(200_000)
    assert any(share_of_a_run_stood_still(columns, 200_000) < 0.6 for _ in range(5))


def share_of_a_run_stood_still(columns: dict[str, Column], batch: int) -> float:
    seconds = [0.0]

    def work() -> None:
        begin = time.perf_counter()
        ENGINE.run(columns, batch)
        seconds[0] = time.perf_counter() - begin

    thread = threading.Thread(target=work)
    last, stood_still = time.perf_counter(), 0.0
    thread.start()
    while thread.is_alive():
        now = time.perf_counter()
        stood_still, last = max(stood_still, now - last), now
    stood_still = max(stood_still, time.perf_counter() - last)
    thread.join()
    assert seconds[0] > 0.0
    return stood_still / seconds[0]


def test_batches_put_together_are_the_batch_of_all_rows() -> None:
    columns = request(6, users=6)
    parts = [
        {name: column.slice(a, b) for name, column in columns.items()} for a, b in ((0, 1), (1, 1), (1, 4), (4, 6))
    ]
    batches = [ENGINE.run(part, part["item"].rows) for part in parts]
    assert_equal(concat_batches(batches), ENGINE.run(columns, 6))
    assert concat_batches(batches[:1]) is batches[0]
    with pytest.raises(InvalidInput, match="at least one"):
        concat_batches([])
    other = FeatureBatch(1, {}, {"x": Jagged(np.zeros(0, np.int64), np.zeros(2, np.int64))})
    with pytest.raises(InvalidInput, match="different features"):
        concat_batches([batches[0], other])


def test_packed_columns_read_back() -> None:
    columns = request() | {
        "tags": column_from_lists("BYTES", [["ab", "", "c"]]),
        "price": column_from_numpy("FP32", np.ones((3, 2)).astype(np.float32), np.array([[True, False]] * 3)),
    }
    arrays = pack_columns(columns)
    assert all(array.flags.c_contiguous for array in arrays.values())
    assert arrays["price"].shape == (3, 2)
    again = unpack_columns(arrays, SPEC)
    assert_equal(ENGINE.run(again, 3), ENGINE.run(columns, 3))
    assert again["user"].rows == 1
    del columns["price"]
    assert "price" not in unpack_columns(pack_columns(columns), SPEC)


def test_packing_takes_only_the_bytes_that_are_used() -> None:
    column = column_from_lists("BYTES", [["secret", "kept"], ["other"]])
    assert isinstance(column.values, BytesValues)
    values = column.values.take(np.array([2, 1]))
    arrays = pack_columns({"tags": Column("BYTES", 1, 1, values, np.array([0, 2]))})
    assert arrays["tags.data"].tobytes() == b"otherkept"
    assert arrays["tags.ends"].tolist() == [5, 9]
    assert pack_columns({"t": column_from_lists("BYTES", [[]])})["t.data"].tolist() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"item": None}, "'item' is not in the packed arrays"),
        ({"itm": np.zeros(3)}, "'itm' belongs to no input; did you mean 'item'"),
        ({"item": np.zeros((3, 1), np.float32)}, "packed as float32, expected INT64"),
        ({"item": np.zeros(3, np.int64)}, r"has shape \[3\]"),
        ({"item.offsets": np.zeros(3, np.int64)}, "packed as"),
        ({"tags.data": None}, "packed as"),
        ({"tags.offsets": np.zeros(0, np.int64)}, "the offsets have shape"),
    ],
)
def test_packed_arrays_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    arrays = {name: array for name, array in (pack_columns(request()) | changes).items() if array is not None}
    with pytest.raises(InvalidInput, match=message):
        unpack_columns(arrays, SPEC)


def test_the_collision_report_counts_which_ids_share_a_bucket() -> None:
    words = [[str(number) for number in range(100)], [str(number) for number in range(50)]]
    spec = FeatureSpec.parse(
        {
            "inputs": [{"name": "w", "dtype": "BYTES", "kind": "list"}, {"name": "n", "dtype": "INT64"}],
            "features": [
                {
                    "name": "few",
                    "inputs": ["w"],
                    "output": "ids",
                    "table": "t",
                    "transforms": [{"op": "hash", "buckets": 10}, {"op": "truncate", "length": 1}],
                },
                {"name": "free", "inputs": ["w"], "output": "ids", "table": "t", "transforms": [{"op": "hash"}]},
                {
                    "name": "crossed",
                    "inputs": ["n", "w"],
                    "output": "ids",
                    "table": "t",
                    "transforms": [{"op": "cross", "buckets": 2**40}],
                },
            ],
        }
    )
    columns = {"w": column_from_lists("BYTES", words), "n": column_from_numpy("INT64", np.array([1, 2]))}
    few, crossed = collision_report(spec, columns, 2)
    assert (few.feature, few.buckets, few.before, few.after) == ("few", 10, 100, 10)
    assert few.rate == pytest.approx(0.9)
    assert few.expected_rate == pytest.approx(0.9, abs=0.001)
    assert "100 values in 10 buckets, 10 ids, 90.00% collide" in str(few)
    assert (crossed.before, crossed.after, crossed.rate) == (150, 150, 0.0)
    assert collision_report(ENGINE, request(), 3)[0].feature == "tags"


@pytest.mark.parametrize(
    ("entry", "column", "row"),
    [
        ({"width": 2}, column_from_numpy("FP32", np.array([[1, 2], [3, np.nan], [5, 6]], np.float32)), 1),
        ({"width": 2}, column_from_numpy("FP64", np.array([[1, 2], [3, 4], [np.nan, 6]])), 2),
        ({"kind": "list"}, column_from_lists("FP32", [[1.0], [], [2.0, None]]), 2),
    ],
)
def test_nan_is_refused_with_its_row_unless_the_spec_gives_it_a_meaning(
    entry: dict[str, Any], column: Column, row: int
) -> None:
    length = [{"op": "truncate", "length": 2}, {"op": "pad", "length": 2}] if entry.get("kind") == "list" else []
    feature = {"name": "x", "inputs": ["x"], "transforms": length, "output": "dense"}

    def engine(**more: Any) -> FeatureEngine:
        return FeatureEngine(
            FeatureSpec.parse({"inputs": [{"name": "x", "dtype": "FP32", **entry, **more}], "features": [feature]})
        )

    with pytest.raises(InvalidInput, match=rf"input 'x', row {row}: NaN") as refused:
        engine().run({"x": column}, 3)
    assert refused.value.field == "x"
    values = np.nan_to_num(np.asarray(engine(missing="null").run({"x": column}, 3).dense["dense"]))
    assert values[row].min() == 0
    default = [1.0] if entry.get("kind") == "list" else 9.0
    with_default = engine(default=default).run({"x": column}, 3).dense["dense"]
    assert (9.0 in with_default[row]) == ("width" in entry)


def test_a_double_column_gives_what_a_float32_tensor_gives() -> None:
    spec = FeatureSpec.parse(
        {
            "inputs": [{"name": "x", "dtype": "FP32"}],
            "features": [
                {"name": "x", "inputs": ["x"], "output": "dense", "transforms": [{"op": "log"}]},
                {
                    "name": "bucket",
                    "inputs": ["x"],
                    "output": "ids",
                    "table": "t",
                    "transforms": [{"op": "bucketise", "boundaries": [0.1, 0.7]}],
                },
            ],
        }
    )
    values = np.array([0.1, 0.7, 16_777_217.0, 1 / 3])
    as_sent = FeatureEngine(spec).run({"x": column_from_numpy("FP32", values.astype(np.float32))}, 4)
    assert as_sent.ids["bucket"].values.tolist() == [1, 1, 2, 1]
    assert_equal(FeatureEngine(spec).run({"x": column_from_numpy("FP64", values)}, 4), as_sent)


def test_a_null_is_refused_with_its_row_where_the_spec_has_none() -> None:
    inputs = [
        {"name": "x", "dtype": "FP32", "width": 2, "nulls": "error"},
        {"name": "ids", "dtype": "INT64", "kind": "list", "nulls": "error"},
    ]
    features = [
        {"name": "x", "inputs": ["x"], "output": "dense"},
        {"name": "ids", "inputs": ["ids"], "output": "ids", "table": "t"},
    ]
    spec = FeatureSpec.parse({"inputs": inputs, "features": features})
    assert [wire.name for entry in spec.inputs for wire in entry.wire_inputs()] == ["x", "ids", "ids.lengths"]
    engine = FeatureEngine(spec)
    x, ids = column_from_numpy("FP32", np.ones((3, 2), np.float32)), column_from_lists("INT64", [[1], [], [2, 3]])
    assert engine.run({"x": x, "ids": ids}, 3).batch == 3
    all_there = replace(x, valid=np.ones(6, np.uint8))
    assert engine.run({"x": all_there, "ids": ids}, 3).batch == 3
    with pytest.raises(InvalidInput, match="input 'x', row 1: null"):
        engine.run({"x": replace(x, valid=np.array([1, 1, 1, 0, 1, 1], np.uint8)), "ids": ids}, 3)
    with pytest.raises(InvalidInput, match="input 'ids', row 2: null"):
        engine.run({"x": x, "ids": column_from_lists("INT64", [[1], [], None])}, 3)
