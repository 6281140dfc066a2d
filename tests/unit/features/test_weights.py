"""Weights beside ids: specs that can have them, refusals that name them, rows that are made to match."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import ConfigError, InvalidInput
from storage.features import (
    FeatureEngine,
    FeatureSpec,
    collision_report,
    column_from_lists,
    column_from_rows,
    concat_batches,
)
from storage.features import pack_columns as pack
from storage.features import unpack_columns as unpack
from storage.features.weights import matched_weights

IDS = {"name": "ids", "dtype": "INT64", "kind": "list", "max_length": 4}
WEIGHTS = {"name": "w", "dtype": "FP32", "kind": "list", "max_length": 4}
FEATURE = {"name": "f", "inputs": ["ids"], "output": "ids", "table": "t", "pooling": "weighted", "weights": "w"}


def spec_of(**changes: Any) -> FeatureSpec:
    """Makes a spec with one weighted feature.

    changes: keys of ids (`ids_kind`), of weights (`w_dtype`), and of the feature (all others).
    """
    ids = IDS | {key.removeprefix("ids_"): value for key, value in changes.items() if key.startswith("ids_")}
    weights = WEIGHTS | {key.removeprefix("w_"): value for key, value in changes.items() if key.startswith("w_")}
    feature = FEATURE | {key: value for key, value in changes.items() if not key.startswith(("ids_", "w_"))}
    return FeatureSpec.parse({"inputs": [ids, weights], "features": [feature]})


def run(spec: FeatureSpec, ids: list[Any], weights: list[Any]) -> Any:
    columns = {"ids": column_from_rows(spec.input("ids"), ids), "w": column_from_rows(spec.input("w"), weights)}
    return FeatureEngine(spec).run(columns, len(ids)).ids["f"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": "sum"}, "pooling weighted and `weights`"),
        ({"weights": ""}, "pooling weighted and `weights`"),
        ({"weights": "ww"}, "unknown weights input 'ww'; did you mean 'w'"),
        ({"w_dtype": "FP64"}, "'w' is FP64; weights are FP32"),
        ({"w_max_length": 5}, "must have the kind, width and max_length of 'ids'"),
        ({"w_kind": "fixed", "w_max_length": 1024}, "must have the kind, width and max_length of 'ids'"),
        ({"transforms": [{"op": "pad", "length": 2}]}, "make ids that have no weight"),
        (
            {"inputs": ["ids", "ids"], "transforms": [{"op": "cross"}]},
            "make ids that have no weight",
        ),
        ({"length": 3}, "`length` is for pooling none"),
        ({"w_default": [1.0]}, "so 'w' has no default"),
    ],
)
def test_a_weighted_feature_that_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(**changes)


def test_weights_go_with_one_input_of_ids() -> None:
    other = {**IDS, "name": "others"}
    features = [FEATURE, {**FEATURE, "name": "g", "inputs": ["others"]}]
    with pytest.raises(ConfigError, match="holds the weights of 'ids' already"):
        FeatureSpec.parse({"inputs": [IDS, other, WEIGHTS], "features": features})
    features[1]["inputs"] = ["ids"]
    spec = FeatureSpec.parse({"inputs": [IDS, WEIGHTS], "features": features})
    assert spec.weights_of == {"w": "ids"}


@pytest.mark.parametrize(
    ("ids", "weights", "message"),
    [
        ([[1, 2]], [[1.0]], r"row 0: the number of weights is 1, that of values in 'ids' is 2"),
        ([[1], None], [[1.0], [2.0]], r"row 1: the number of weights is 1, that of values in 'ids' is 0"),
        ([[1], [2]], [[1.0], [math.nan]], r"row 1: a weight is null or NaN"),
        ([[1], [2]], [[1.0], [None]], r"row 1: a weight is null or NaN"),
        ([[1]], [[math.inf]], r"row 0: a weight is not a finite float32"),
    ],
)
def test_weights_that_do_not_fit_name_their_input(ids: list[Any], weights: list[Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        run(spec_of(), ids, weights)
    assert caught.value.field == "w"


def test_batches_and_packed_columns_keep_their_weights() -> None:
    spec = spec_of()
    engine = FeatureEngine(spec)
    one = {"ids": column_from_lists("INT64", [[1, 2], []]), "w": column_from_lists("FP32", [[0.5, 2.0], []])}
    two = {"ids": column_from_lists("INT64", [[7]]), "w": column_from_lists("FP32", [[-1.0]])}
    whole = concat_batches([engine.run(one, 2), engine.run(unpack(pack(two), spec), 1)]).ids["f"]
    assert whole.values.tolist() == [1, 2, 7]
    assert whole.offsets.tolist() == [0, 2, 2, 3]
    assert whole.weights is not None
    assert whole.weights.dtype == np.float32
    assert whole.weights.tolist() == [0.5, 2.0, -1.0]


def test_a_feature_without_weights_has_none() -> None:
    spec = spec_of(pooling="sum", weights="")
    assert run(spec, [[1]], [[1.0]]).weights is None


def test_collisions_are_counted_without_weights() -> None:
    spec = spec_of(transforms=[{"op": "hash", "buckets": 10}])
    [report] = collision_report(spec, {"ids": column_from_lists("INT64", [[1, 2, 3]])}, 1)
    assert report.before == 3


NUMBERS = st.one_of(st.none(), st.just(math.nan), st.floats(-4, 4, width=32))


@given(
    st.lists(st.tuples(st.none() | st.lists(st.integers(0, 9), max_size=4), st.none() | st.lists(NUMBERS, max_size=4))),
    st.sampled_from([None, [3, 4]]),
    st.sampled_from([None, "null"]),
)
def test_matched_rows_are_taken(rows: list[tuple[Any, Any]], ids_default: Any, empty: str | None) -> None:
    changes = {"ids_default": ids_default, "w_empty": empty, "ids_empty": empty}
    spec = spec_of(**{key: value for key, value in changes.items() if value is not None})
    matched = [matched_weights(spec, {"ids": ids, "w": weights}) for ids, weights in rows]
    assert [row["ids"] for row in matched] == [ids for ids, _ in rows]
    bags = run(spec, [row["ids"] for row in matched], [row["w"] for row in matched])
    assert len(bags.weights) == len(bags.values)
    again = [matched_weights(spec, row) for row in matched]
    assert all(one is other for one, other in zip(matched, again, strict=True))


@pytest.mark.parametrize(("given_weights", "fitting"), [(None, 1.0), (math.nan, 1.0), (0.25, 0.25)])
def test_a_single_weight_is_matched_too(given_weights: Any, fitting: float) -> None:
    spec = spec_of(ids_kind="fixed", ids_max_length=1024, w_kind="fixed", w_max_length=1024)
    row = matched_weights(spec, {"ids": 5, "w": given_weights})
    assert row == {"ids": 5, "w": fitting}
    assert run(spec, [5], [row["w"]]).weights.tolist() == [fitting]


def test_columns_of_one_row_are_matched_each() -> None:
    spec = spec_of(ids_kind="fixed", ids_width=3, ids_max_length=1024, w_kind="fixed", w_width=3, w_max_length=1024)
    row = matched_weights(spec, {"ids": [1, None, 3], "w": [0.5, None, math.nan]})
    assert row["w"] == [0.5, 1.0, 1.0]
    assert run(spec, [row["ids"]], [row["w"]]).values.tolist() == [1, 3]
    defaulted = spec_of(ids_kind="fixed", ids_max_length=1024, w_kind="fixed", w_max_length=1024, w_default=2.0)
    untouched = {"ids": 5, "w": None}
    assert matched_weights(defaulted, untouched) is untouched
    assert run(defaulted, [5], [None]).weights.tolist() == [2.0]
