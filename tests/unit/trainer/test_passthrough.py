"""Tests where ids can be put into raw requests, by the ids that the feature engine makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from storage.features import FeatureEngine, FeatureSpec, column_from_rows
from trainer.publishing.passthrough import passthrough_inputs

EXTREMES = [-1, 0, 2**63 - 1, -(2**63), 5, 6, 7, 8]


def spec_of(inputs: list[dict[str, Any]], *features: dict[str, Any]) -> FeatureSpec:
    named = [{"name": f"f{n}", "output": "ids", "table": "t", **feature} for n, feature in enumerate(features)]
    return FeatureSpec.parse({"inputs": inputs, "features": named})


LIST = {"name": "x", "dtype": "INT64", "kind": "list"}
WIDE = {"name": "x", "dtype": "INT64", "width": 4}
CASES = {
    "a number": (spec_of([{"name": "x", "dtype": "INT64"}], {"inputs": ["x"]}), 1),
    "unsigned": (spec_of([{"name": "x", "dtype": "UINT64"}], {"inputs": ["x"]}), 1),
    "a list": (spec_of([LIST], {"inputs": ["x"]}), 8),
    "a short list": (spec_of([{**LIST, "max_length": 3}], {"inputs": ["x"]}), 3),
    "a sequence": (spec_of([LIST], {"inputs": ["x"], "pooling": "none", "length": 2}), 2),
    "the last of a list": (
        spec_of([LIST], {"inputs": ["x"], "transforms": [{"op": "truncate", "length": 5, "keep": "last"}]}),
        5,
    ),
    "columns": (spec_of([WIDE], {"inputs": ["x"]}), 4),
    "one column": (spec_of([WIDE], {"inputs": ["x"], "transforms": [{"op": "select", "index": 2}]}), 1),
    "some columns": (spec_of([WIDE], {"inputs": ["x"], "transforms": [{"op": "slice", "start": 1, "stop": 3}]}), 2),
    "the last columns": (
        spec_of([WIDE], {"inputs": ["x"], "transforms": [{"op": "truncate", "length": 1, "keep": "last"}]}),
        1,
    ),
    "two columns of one table": (
        spec_of(
            [WIDE],
            {"inputs": ["x"], "transforms": [{"op": "select", "index": 0}]},
            {"inputs": ["x"], "transforms": [{"op": "select", "index": 3}]},
        ),
        2,
    ),
    "hashed": (spec_of([LIST], {"inputs": ["x"], "transforms": [{"op": "hash"}]}), 0),
    "strings": (spec_of([{"name": "x", "dtype": "BYTES"}], {"inputs": ["x"], "transforms": [{"op": "hash"}]}), 0),
    "crossed": (
        spec_of([LIST, {**LIST, "name": "y"}], {"inputs": ["x", "y"], "transforms": [{"op": "cross"}]}),
        0,
    ),
    "in a cross too": (
        spec_of(
            [LIST, {**LIST, "name": "y"}],
            {"inputs": ["x", "y"], "transforms": [{"op": "cross"}], "table": "pairs"},
            {"inputs": ["x"]},
        ),
        1,
    ),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_ids_that_are_put_into_a_row_come_out_as_they_are(case: str) -> None:
    spec, capacity = CASES[case]
    places = passthrough_inputs(spec, spec.inputs).get("t", [])
    assert sum(entry.ids for entry in places) == capacity
    row: dict[str, Any] = {entry.name: [] if entry.kind == "list" else None for entry in spec.inputs}
    left = list(EXTREMES[:capacity])
    for entry in places:
        entry.put(row, left[: entry.ids])
        left = left[entry.ids :]
    batch = FeatureEngine(spec).run(
        {entry.name: column_from_rows(entry, [row[entry.name]]) for entry in spec.inputs}, 1
    )
    features = [feature.name for feature in spec.ids_features if feature.table == "t"]
    met = {i for name in features for i in batch.ids[name].values.tolist()} if capacity else set()
    assert set(EXTREMES[:capacity]) <= met


def test_a_place_that_two_tables_read_is_filled_for_one() -> None:
    spec = spec_of([WIDE], {"inputs": ["x"]}, {"inputs": ["x"], "table": "other"})
    assert {name: len(places) for name, places in passthrough_inputs(spec, spec.inputs).items()} == {"t": 4}


def test_ids_that_the_wire_cannot_carry_are_left_out() -> None:
    spec = spec_of([{"name": "x", "dtype": "INT32", "kind": "list"}], {"inputs": ["x"]})
    [entry] = passthrough_inputs(spec, spec.inputs)["t"]
    row: dict[str, Any] = {"x": [9]}
    entry.put(row, [2**40])
    assert row == {"x": [9]}
    entry.put(row, [2**40, 3, -4])
    assert row == {"x": [3, -4]}
