"""Checks what single transforms give for rows that a user would write, and what they refuse."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from storage.errors import ConfigError, InvalidInput
from storage.features import FeatureEngine, FeatureSpec, column_from_rows


def spec_of(entry: dict[str, Any], transforms: Sequence[Any], **feature: Any) -> FeatureSpec:
    about = {"output": "dense"} if "output" not in feature else {}
    return FeatureSpec.parse(
        {
            "inputs": [{"name": "x", **entry}],
            "features": [{"name": "f", "inputs": ["x"], "transforms": list(transforms), **about, **feature}],
        }
    )


def dense(entry: dict[str, Any], transforms: Sequence[Any], rows: list[Any] | None, batch: int = 1) -> list[Any]:
    spec = spec_of(entry, transforms)
    columns = {} if rows is None else {"x": column_from_rows(spec.input("x"), rows)}
    found: list[Any] = FeatureEngine(spec).run(columns, batch if rows is None else len(rows)).dense["dense"].tolist()
    return found


def ids(entry: dict[str, Any], transforms: Sequence[Any], rows: list[Any]) -> list[list[int]]:
    spec = spec_of(entry, transforms, output="ids", table="t")
    bags = FeatureEngine(spec).run({"x": column_from_rows(spec.input("x"), rows)}, len(rows)).ids["f"]
    return [bags.values[a:b].tolist() for a, b in zip(bags.offsets, bags.offsets[1:], strict=False)]


@pytest.mark.parametrize(
    ("entry", "rows"),
    [
        ({"dtype": "INT64"}, [0, None, 7]),
        ({"dtype": "FP32", "missing": "null"}, [0.0, float("nan"), 7.0]),
        ({"dtype": "BYTES", "empty": "null"}, [b"a", b"", b"b"]),
    ],
)
def test_a_null_is_1_and_a_value_is_0(entry: dict[str, Any], rows: list[Any]) -> None:
    assert dense(entry, [{"op": "is_null"}], rows) == [[0.0], [1.0], [0.0]]
    assert ids(entry, [{"op": "is_null"}], rows) == [[0], [1], [0]]


def test_an_input_that_the_request_does_not_have_is_null_in_every_row() -> None:
    assert dense({"dtype": "INT64", "missing": "null"}, [{"op": "is_null"}], None, batch=2) == [[1.0], [1.0]]


def test_each_column_of_a_wide_input_is_asked_by_itself() -> None:
    assert dense({"dtype": "INT64", "width": 2}, [{"op": "is_null"}], [[1, None], [None, None]]) == [[0, 1], [1, 1]]
    column = [{"op": "select", "index": 1}, {"op": "is_null"}]
    assert dense({"dtype": "INT64", "width": 2}, column, [[1, None], [None, 2]]) == [[1], [0]]


def test_a_feature_fills_nulls_with_its_own_value() -> None:
    entry = {"dtype": "FP32"}
    assert dense(entry, [{"op": "fill", "value": 3.5}], [1.0, None]) == [[1.0], [3.5]]
    assert dense(entry, [{"op": "log"}, {"op": "fill", "value": -1}], [0.0, None]) == [[0.0], [-1.0]]


def test_nulls_have_a_row_of_their_own() -> None:
    own = [{"op": "hash", "buckets": 100}, {"op": "fill", "value": -1}]
    (some,), null = ids({"dtype": "BYTES"}, own, [b"a", None])
    assert 0 <= some < 100
    assert null == [-1]
    word = [{"op": "fill", "value": "none"}, {"op": "vocabulary", "values": ["none", "a"]}]
    assert ids({"dtype": "BYTES"}, word, [b"a", None]) == [[1], [0]]
    unknown = [{"op": "vocabulary", "values": [5, 6]}, {"op": "fill", "value": 2}]
    assert ids({"dtype": "INT64"}, unknown, [6, None, 9]) == [[1], [2], [2]]


def test_a_number_is_standardised_as_numpy_does() -> None:
    rows = [1.5, -3.0, 1e9, 0.1]
    found = dense({"dtype": "FP64"}, [{"op": "standardise", "mean": 0.3, "std": 0.7}], rows)
    assert np.array_equal(np.ravel(found), ((np.array(rows) - 0.3) / 0.7).astype(np.float32))


def test_text_is_split_into_the_ids_of_a_list() -> None:
    words = [{"op": "split", "delimiter": "|"}, {"op": "vocabulary", "values": ["Action", "Drama", "War"]}]
    rows = [b"Drama|War", b"", None, b"|Action||Drama|", b"Western"]
    assert ids({"dtype": "BYTES"}, words, rows) == [[1, 2], [], [], [0, 1], []]
    longer = [{"op": "split", "delimiter": ", "}, {"op": "vocabulary", "values": ["a", "b,c"]}]
    assert ids({"dtype": "BYTES", "kind": "list"}, longer, [[b"a, b,c", b"a"], []]) == [[0, 1, 0], []]


def test_a_row_with_too_many_pieces_is_refused_with_its_input() -> None:
    entry = {"dtype": "BYTES"}
    ops = [{"op": "split", "delimiter": ",", "max": 2}, {"op": "hash"}]
    assert len(ids(entry, ops, [b"a,b", b",a,,b,"])[1]) == 2
    with pytest.raises(
        InvalidInput, match=r"input 'x', row 1: splits into 3 pieces, more than 2, the `max`"
    ) as refused:
        ids(entry, ops, [b"a,b", b"a,b,c"])
    assert refused.value.field == "x"


@pytest.mark.parametrize("seconds", [0, -1, 1_700_000_000, -62_135_596_800, 253_402_300_799])
@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_hours_and_days_are_those_of_the_calendar(seconds: int, unit: str, factor: int) -> None:
    if not -(2**63) <= seconds * factor < 2**63:
        return
    there = datetime.fromtimestamp(seconds, UTC)
    assert dense({"dtype": "INT64"}, [{"op": "hour", "unit": unit}], [seconds * factor]) == [[there.hour]]
    assert dense({"dtype": "INT64"}, [{"op": "weekday", "unit": unit}], [seconds * factor]) == [[there.weekday()]]


def test_the_offset_is_added_to_utc() -> None:
    sunday = int(datetime(2026, 11, 29, 23, 30, tzinfo=UTC).timestamp())
    for minutes, hour, day in ((60, 0, 0), (-1440, 23, 5), (0, 23, 6)):
        options = {"unit": "s", "utc_offset_minutes": minutes}
        assert dense({"dtype": "INT64"}, [{"op": "hour", **options}], [sunday]) == [[hour]]
        assert dense({"dtype": "INT64"}, [{"op": "weekday", **options}], [sunday]) == [[day]]


@pytest.mark.parametrize(
    ("entry", "ops", "words"),
    [
        ({"dtype": "INT64", "kind": "list"}, [{"op": "is_null"}], "takes an input of fixed width, but gets a list"),
        ({"dtype": "INT64"}, [{"op": "fill", "value": "a"}], "the value 'a' does not fit integers"),
        ({"dtype": "INT64"}, [{"op": "fill", "value": 1.5}], "the value 1.5 does not fit integers"),
        ({"dtype": "BYTES"}, [{"op": "fill", "value": 1}], "the value 1 does not fit BYTES"),
        ({"dtype": "FP32"}, [{"op": "hour"}], "takes integers, but gets floats"),
        ({"dtype": "BYTES"}, [{"op": "weekday"}], "takes integers, but gets BYTES"),
        ({"dtype": "INT64"}, [{"op": "weekday", "unit": "min"}], "'s', 'ms', 'us' or 'ns'"),
        ({"dtype": "INT64"}, [{"op": "split", "delimiter": "|"}], "takes BYTES, but gets integers"),
        ({"dtype": "BYTES"}, [{"op": "split", "delimiter": ""}], "at least 1 character"),
        ({"dtype": "FP32"}, [{"op": "standardise", "mean": 1, "std": 0}], "greater than 0"),
        ({"dtype": "FP32"}, [{"op": "standardize", "mean": 1, "std": 1}], "did you mean 'standardise'"),
        ({"dtype": "BYTES"}, [{"op": "split", "delimiter": "|"}], "gives BYTES"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_spec_is_read(
    entry: dict[str, Any], ops: list[dict[str, Any]], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        spec_of(entry, ops)


@pytest.mark.parametrize("op", [{"op": "fill", "value": 1}, {"op": "is_null"}])
def test_what_has_no_weight_is_refused_beside_weights(op: dict[str, Any]) -> None:
    inputs = [{"name": "x", "dtype": "INT64"}, {"name": "w", "dtype": "FP32"}]
    feature = {"name": "f", "inputs": ["x"], "output": "ids", "table": "t", "pooling": "weighted", "weights": "w"}
    with pytest.raises(ConfigError, match="make ids that have no weight"):
        FeatureSpec.parse({"inputs": inputs, "features": [{**feature, "transforms": [op]}]})
