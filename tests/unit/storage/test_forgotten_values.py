"""Raw values whose ids nulls or unknown values have too are named, because their rows stay."""

from __future__ import annotations

from typing import Any

import pytest

from storage.errors import InvalidInput
from storage.features import FeatureEngine, FeatureSpec, column_from_rows
from storage.forgetting import wanted_values


@pytest.mark.parametrize(
    ("entry", "transforms", "texts", "own"),
    [
        ({"dtype": "INT64", "default": 0}, [], ["0", "5"], [5]),
        ({"dtype": "INT64"}, [{"op": "fill", "value": -1}], ["-1"], []),
        ({"dtype": "BYTES"}, [{"op": "vocabulary", "values": ["a", "b"], "unknown": 0}], ["a", "b"], [1]),
    ],
)
def test_ids_that_nulls_have_too_are_named(
    entry: dict[str, Any], transforms: list[dict[str, Any]], texts: list[str], own: list[int]
) -> None:
    feature = {"name": "user", "inputs": ["user"], "transforms": transforms, "output": "ids", "table": "users"}
    spec = FeatureSpec.parse({"inputs": [{"name": "user", **entry}], "features": [feature]})
    wanted = wanted_values(spec, "user", texts)
    assert wanted.tables["users"].tolist() == own
    assert "gives 1 of the values the id of nulls or unknown values" in wanted.shared["user"]


def test_bytes_that_are_no_text_are_values_like_others() -> None:
    feature = {"name": "user", "inputs": ["user"], "transforms": [{"op": "hash"}], "output": "ids", "table": "users"}
    spec = FeatureSpec.parse({"inputs": [{"name": "user", "dtype": "BYTES"}], "features": [feature]})
    value = b"\xff\xfe user"
    wanted = wanted_values(spec, "user", [value.decode("utf-8", "surrogateescape")])
    column = column_from_rows(spec.input("user"), [value])
    assert wanted.values["user"] == {value}
    assert wanted.tables["users"].tolist() == FeatureEngine(spec).run({"user": column}, 1).ids["user"].values.tolist()


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        ("INT64", "1_000"),
        ("INT64", "\u0661\u0662"),
        ("INT64", " 7"),
        ("INT64", str(2**63)),
        ("INT32", str(2**31)),
        ("UINT64", "-1"),
        ("INT64", "1" * 40),
    ],
)
def test_a_text_that_is_no_number_of_the_dtype_forgets_nobody(dtype: str, text: str) -> None:
    feature = {"name": "user", "inputs": ["user"], "output": "ids", "table": "users"}
    spec = FeatureSpec.parse({"inputs": [{"name": "user", "dtype": dtype}], "features": [feature]})
    with pytest.raises(InvalidInput, match=f"value 2, .* is no {dtype} of the input 'user'; expected a whole number"):
        wanted_values(spec, "user", ["5", text])
    assert wanted_values(spec, "user", ["007"]).values["user"] == {7}
