"""A spec that cannot work is refused when it is read, with the place and what to do."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from storage.errors import ConfigError
from storage.features import FeatureSpec

GOOD: dict[str, Any] = {
    "inputs": [
        {"name": "user", "dtype": "INT64", "side": "user"},
        {"name": "tags", "dtype": "BYTES", "kind": "list", "missing": "null", "default": ["none"]},
        {"name": "price", "dtype": "FP32", "width": 3},
    ],
    "features": [
        {"name": "user", "inputs": ["user"], "output": "ids", "table": "users"},
        {
            "name": "tags",
            "inputs": ["tags"],
            "transforms": [{"op": "hash", "seed": 1, "salt": "tags", "buckets": 100}],
            "output": "ids",
            "table": "tags",
            "pooling": "none",
            "length": 4,
        },
        {"name": "both", "inputs": ["user", "tags"], "transforms": [{"op": "cross"}], "output": "ids", "table": "x"},
        {"name": "p", "inputs": ["price"], "transforms": [{"op": "slice", "start": 1, "stop": 3}], "output": "dense"},
        {"name": "q", "inputs": ["price"], "transforms": [{"op": "log"}], "output": "dense", "group": "other"},
    ],
}


def test_the_json_of_a_spec_reads_back_as_the_same_spec() -> None:
    spec = FeatureSpec.parse(GOOD)
    assert FeatureSpec.model_validate_json(spec.model_dump_json(indent=1)) == spec
    assert FeatureSpec.parse(spec.model_dump(mode="json")) == spec
    default = spec.input("tags").default
    assert isinstance(default, tuple)
    assert [type(value) for value in default] == [str]


def test_a_spec_knows_its_groups_tables_and_wire_inputs() -> None:
    spec = FeatureSpec.parse(GOOD)
    assert spec.dense_groups == {"dense": 2, "other": 3}
    assert spec.table_names == ("users", "tags", "x")
    assert [feature.name for feature in spec.ids_features] == ["user", "tags", "both"]
    assert [tuple(entry) for entry in spec.wire_inputs()] == [
        ("user", "INT64", (1,), False),
        ("user.valid", "BOOL", (1,), True),
        ("tags", "BYTES", (-1,), True),
        ("tags.lengths", "INT64", (1,), True),
        ("tags.valid", "BOOL", (1,), True),
        ("price", "FP32", (3,), False),
        ("price.valid", "BOOL", (3,), True),
    ]


def feature(**changes: Any) -> dict[str, Any]:
    return {"features": [{"name": "f", "inputs": ["user"], "output": "ids", "table": "t"} | changes]}


def ops(name: str, *transforms: dict[str, Any], output: str = "ids") -> dict[str, Any]:
    table = {"table": "t"} if output == "ids" else {"table": ""}
    return feature(inputs=[name], transforms=list(transforms), output=output, **table)


def given(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "user", "dtype": "INT64"} | changes], **feature()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (ops("user", {"op": "hsh"}), "unknown op 'hsh'; did you mean 'hash'"),
        (
            ops("user", output="integers"),
            "a null has none: say `nulls: error` of the input 'user'",
        ),
        (ops("tags", {"op": "hash"}, output="integers"), "but `integers` have a fixed number of them"),
        (ops("price", output="integers"), "gives floats, but `integers` are integers"),
        (
            given(nulls="error") | ops("user", {"op": "vocabulary", "values": [1]}, output="integers"),
            "an unknown value has none: give `unknown` an id",
        ),
        (feature(output="integers"), "'f' gives integers: table, pooling, length, weights, absent and fallback"),
        (ops("user", {"op": "add", "values": [1, 2]}), "adds to 2 columns, but a row has 1 to 1 values"),
        (ops("user", {"op": "integer"}), "takes floats, but gets integers"),
        (ops("user", {"op": "replace", "by": 0}), "replace needs low, high or both"),
        (ops("user", {"op": "replace", "low": 2, "high": 1, "by": 0}), "low 2 is above high 1"),
        (ops("user", {"seed": 1}), "needs an `op`"),
        (ops("user", {"op": "hash", "sed": 1}), "unknown key 'sed'; did you mean 'seed'"),
        (ops("user", {"op": "hash", "buckets": 0}), "greater than or equal to 1"),
        (ops("user", {"op": "hash", "seed": -1}), "greater than or equal to 0"),
        (ops("tags", {"op": "log"}), r"transforms\[0\] \(log\): takes integers or floats, but gets BYTES"),
        (ops("tags"), "gives BYTES, but ids are integers: end with hash or vocabulary"),
        (ops("price"), "gives floats, but ids are integers: end with bucketise"),
        (ops("price", {"op": "hash"}), "takes BYTES or integers, but gets floats"),
        (ops("tags", output="dense"), "gives BYTES, but a dense feature is a number"),
        (ops("tags", {"op": "hash"}, output="dense"), "gives 0 to 1024 values a row"),
        (ops("user", {"op": "vocabulary", "values": ["a"]}), "the values must be integers, as the input is"),
        (ops("tags", {"op": "vocabulary", "values": [1]}), "the values must be strings"),
        (ops("tags", {"op": "vocabulary", "values": ["a", 1]}), "all strings or all integers"),
        (ops("tags", {"op": "vocabulary", "values": ["a", 1.5]}), r"strings or integers, got 1.5 \(float\)"),
        (ops("tags", {"op": "vocabulary", "values": ["a", "a"]}), "'a' stands twice"),
        (ops("user", {"op": "bucketise", "boundaries": [1, 3, 3]}), "must ascend strictly, but 3 follows 3"),
        (ops("user", {"op": "bucketise", "boundaries": [float("nan")]}), "expected a finite number"),
        (ops("user", {"op": "bucketise", "boundaries": ["1"]}), "expected a number, got '1'"),
        (given(default=float("nan")), "finite"),
        (ops("price", {"op": "clip"}, output="dense"), "clip needs min, max or both"),
        (ops("price", {"op": "clip", "min": 2, "max": 1}, output="dense"), "min 2 is above max 1"),
        (ops("user", {"op": "cross"}), "a cross needs two inputs or more"),
        (feature(inputs=["user", "tags"]), "has 2 inputs, so its first transform must be a cross"),
        (feature(inputs=["user", "price"], transforms=[{"op": "cross"}]), "not floats"),
        (
            feature(inputs=["user", "tags"], transforms=[{"op": "cross"}, {"op": "cross"}]),
            r"transforms\[1\] \(cross\): a cross must come first",
        ),
        (ops("price", {"op": "select", "index": 3}, output="dense"), "3 to 4 do not lie in a width of 3"),
        (ops("tags", {"op": "select", "index": 0}), "gets a list; use truncate"),
        (ops("price", {"op": "slice", "start": 2, "stop": 2}, output="dense"), "2 to 2 do not lie"),
        (ops("tags", {"op": "pad", "length": 3, "value": 1}), "1 does not fit BYTES"),
        (feature(inputs=["usr"]), "unknown input 'usr'; did you mean 'user'"),
        (feature(inputs=[]), "at least 1 item"),
        (feature(table=""), "gives ids, so it needs a table"),
        (feature(tabel="x"), "unknown key 'tabel'; did you mean 'table'"),
        (feature(pooling="none"), "pooling none, so it needs a length"),
        (feature(length=3), "`length` is for pooling none"),
        (feature(group="g"), "`group` is for dense features"),
        (feature(output="dense"), "is dense: table, pooling, length, weights, absent and fallback are for ids"),
        ({"features": GOOD["features"] + GOOD["features"][:1]}, "two features are called 'user'"),
        ({"inputs": GOOD["inputs"] + GOOD["inputs"][:1]}, "two inputs are called 'user'"),
        (given(name="user.lengths"), "the ending '.lengths' is kept for a companion"),
        (given(name="user.valid"), "the ending '.valid' is kept for a companion"),
        (given(name="a\nb"), "printable characters"),
        (given(name=""), "printable characters"),
        (given(dtype="INT8"), "'INT64'"),
        (given(default="x"), "the default 'x' is no value of INT64"),
        (given(default=True), "the default True is no value of INT64"),
        (given(default=2**63), "is no value of INT64"),
        (given(dtype="UINT64", default=-1), "is no value of UINT64"),
        (given(default=[1]), "is fixed, so its default is one value"),
        (given(kind="list", default=1), "its default is a list"),
        (given(kind="list", max_length=1, default=[1, 2]), "longer than max_length 1"),
        (given(kind="list", width=2), "so it has no width"),
        (given(max_length=3), "so it has no max_length"),
        (given(empty="null"), "`empty` is for BYTES"),
        (given(kind="list", empty="value"), "`empty` is 'empty' or 'null'"),
        (given(nulls="error", missing="null"), "nothing is null"),
        (given(nulls="error", default=1), "nothing is null"),
        (given(nulls="never"), "'allow' or 'error'"),
        (given(width=0), "greater than or equal to 1"),
        (given(widht=2), "unknown key 'widht'; did you mean 'width'"),
        ({"feature": []}, "unknown key 'feature'; did you mean 'features'"),
    ],
)
def test_a_spec_that_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FeatureSpec.parse(copy.deepcopy(GOOD) | changes)


def test_the_field_of_an_error_is_the_place_in_the_spec() -> None:
    with pytest.raises(ConfigError) as caught:
        FeatureSpec.parse(GOOD | ops("user", {"op": "hash", "buckets": 0}))
    assert caught.value.field.startswith("features.0.transforms.0")
    assert "buckets" in caught.value.field


def test_the_input_good_is_good() -> None:
    FeatureSpec.parse(GOOD)
