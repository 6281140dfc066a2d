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
    join_columns,
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
    joined = join_columns([columns for columns, _ in made])
    assert all(can_join(made[0][0], columns) for columns, _ in made)
    together = ENGINE.run(joined, sum(batch for _, batch in made))
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
    long = Column("INT64", 1, 1, np.zeros(2, np.int64))
    short = Column("INT64", 3, 1, np.zeros(2, np.int64))
    with pytest.raises(InvalidInput, match="a column of 1 values holds 2"):
        join_columns([{"a": long}, {"a": short}])
    more = Column("INT64", 1, 1, np.zeros(2, np.int64), np.array([0, 1], np.int64))
    with pytest.raises(InvalidInput, match="a column of 1 values holds 2"):
        join_columns([{"a": more}, {"a": more}])
