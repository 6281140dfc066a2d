"""Requests that are joined give, row by row, what each gives alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import InvalidInput
from storage.features import (
    Column,
    FeatureEngine,
    FeatureSpec,
    can_join,
    column_from_lists,
    column_from_numpy,
    column_from_rows,
    concat_batches,
)
from tests.support.examples import examples

SPEC = FeatureSpec.model_validate(
    {
        "inputs": [
            {"name": "user", "dtype": "INT64", "width": 2},
            {"name": "tags", "dtype": "BYTES", "kind": "list"},
            {"name": "city", "dtype": "BYTES", "missing": "null"},
            {"name": "clicked", "dtype": "INT64", "kind": "list"},
            {"name": "weights", "dtype": "FP32", "kind": "list"},
            {"name": "age", "dtype": "FP32"},
        ],
        "features": [
            {"name": "user", "inputs": ["user"], "output": "ids", "table": "user"},
            {
                "name": "tags",
                "inputs": ["tags"],
                "transforms": [{"op": "hash", "seed": 1, "salt": "t"}],
                "output": "ids",
                "table": "tag",
            },
            {
                "name": "city",
                "inputs": ["city"],
                "transforms": [{"op": "hash", "seed": 2, "salt": "c"}],
                "output": "ids",
                "table": "city",
            },
            {
                "name": "clicked",
                "inputs": ["clicked"],
                "output": "ids",
                "table": "user",
                "pooling": "weighted",
                "weights": "weights",
            },
            {"name": "age", "inputs": ["age"], "output": "dense"},
        ],
    }
)
ENGINE = FeatureEngine(SPEC)

_words = st.binary(max_size=5)
_ids = st.integers(-5, 5)
_row = st.tuples(
    st.tuples(_ids, _ids),
    st.none() | st.lists(_words, max_size=3),
    st.none() | _words,
    st.lists(_ids, max_size=3),
    st.none() | st.floats(-1, 1, width=32),
)


def request(rows: list[Any], with_city: bool = True) -> tuple[dict[str, Column], int]:
    columns = {
        "user": column_from_numpy("INT64", np.array([row[0] for row in rows], np.int64)),
        "tags": column_from_lists("BYTES", [row[1] for row in rows]),
        "clicked": column_from_lists("INT64", [row[3] for row in rows]),
        "weights": column_from_lists("FP32", [[0.5] * len(row[3]) for row in rows]),
        "age": column_from_rows(SPEC.inputs[-1], [row[4] for row in rows]),
    }
    if with_city:
        columns["city"] = column_from_rows(SPEC.input("city"), [row[2] for row in rows])
    return columns, len(rows)


@settings(max_examples=examples(80))
@given(requests=st.lists(st.lists(_row, min_size=1, max_size=4), min_size=1, max_size=4), with_city=st.booleans())
def test_joined_requests_give_what_each_gives_alone(requests: list[list[Any]], with_city: bool) -> None:
    made = [request(rows, with_city) for rows in requests]
    assert all(can_join(made[0][0], columns) for columns, _ in made)
    together = ENGINE.run_joined(made)
    apart = concat_batches([ENGINE.run(columns, batch) for columns, batch in made])
    for name, values in apart.dense.items():
        assert np.array_equal(together.dense[name], values)
    for name, bags in apart.ids.items():
        assert np.array_equal(together.ids[name].values, bags.values)
        assert np.array_equal(together.ids[name].offsets, bags.offsets)
        if bags.weights is not None:
            weights = together.ids[name].weights
            assert weights is not None
            assert np.array_equal(weights, bags.weights)


def test_requests_of_other_inputs_or_other_forms_are_not_joined() -> None:
    row = ((1, 2), [b"a"], b"b", [3], 1.0)
    columns, _ = request([row])
    assert can_join(columns, request([row, row])[0])
    assert not can_join(columns, request([row], with_city=False)[0])
    small = Column("INT32", 1, 2, np.zeros(2, np.int32))
    assert not can_join(columns, {**columns, "user": small})
    one = Column("INT64", 1, 1, np.zeros(1, np.int64))
    assert not can_join(columns, {**columns, "user": one})
    assert not can_join(columns, {**columns, "clicked": one})


def test_values_that_would_move_those_of_others_are_refused() -> None:
    row = ((1, 2), [b"a"], b"b", [3], 1.0)
    good, batch = request([row])
    for name, column, words in (
        ("user", Column("INT64", 1, 2, np.zeros(3, np.int64)), "3 values do not fill 1 rows of width 2"),
        ("clicked", Column("INT64", 1, 1, np.zeros(2, np.int64), np.array([0, 1], np.int64)), "add up to 1, but 2"),
    ):
        with pytest.raises(InvalidInput, match=words) as caught:
            ENGINE.run_joined([(good, batch), ({**good, name: column}, batch)])
        assert caught.value.field == name


def test_requests_that_are_not_alike_are_an_error_of_the_caller() -> None:
    row = ((1, 2), [b"a"], b"b", [3], 1.0)
    with pytest.raises(ValueError, match="requests of other inputs, or in other forms"):
        ENGINE.run_joined([request([row]), request([row], with_city=False)])


def test_the_one_row_of_a_user_stands_for_the_rows_of_its_own_request() -> None:
    spec = FeatureSpec.model_validate(
        {
            "inputs": [
                {"name": "user", "dtype": "INT64", "side": "user"},
                {"name": "tags", "dtype": "BYTES", "kind": "list", "side": "user"},
                {"name": "item", "dtype": "INT64"},
            ],
            "features": [
                {"name": "user", "inputs": ["user"], "output": "ids", "table": "u"},
                {"name": "tags", "inputs": ["tags"], "transforms": [{"op": "hash"}], "output": "ids", "table": "t"},
                {"name": "item", "inputs": ["item"], "output": "ids", "table": "i"},
            ],
        }
    )
    engine = FeatureEngine(spec)
    requests: list[tuple[dict[str, Column], int]] = [
        (
            {
                "user": column_from_numpy("INT64", np.array([user])),
                "tags": column_from_lists("BYTES", [tags], name="tags"),
                "item": column_from_numpy("INT64", np.arange(items)),
            },
            items,
        )
        for user, tags, items in ((7, ["a", "b"], 3), (8, [], 1), (9, ["c"], 0), (10, ["d"], 2))
    ]
    together = engine.run_joined(requests)
    apart = concat_batches([engine.run(columns, batch) for columns, batch in requests])
    assert together.ids["user"].values.tolist() == [7, 7, 7, 8, 10, 10]
    for name, bags in apart.ids.items():
        assert together.ids[name].values.tolist() == bags.values.tolist()
        assert together.ids[name].offsets.tolist() == bags.offsets.tolist()
