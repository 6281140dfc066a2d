from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from serving.protocol.signature import ModelSignature, OutputSignature
from serving.protocol.v1 import decode_predict, encode_predict
from storage.errors import InvalidInput


def decode(signature: ModelSignature, **request: Any) -> Any:
    return decode_predict(signature, json.dumps(request).encode())


def test_rows_may_have_nulls_missing_keys_and_ragged_lists(signature: ModelSignature) -> None:
    columns, batch, by_rows = decode(
        signature,
        instances=[
            {"user": 1, "item": 2**63, "history": [1, 2, 3], "price": [1, 2]},
            {"user": -1, "item": -(2**63), "history": None, "zip": {"b64": "/w=="}},
        ],
    )
    assert (batch, by_rows) == (2, True)
    assert columns["item"].values.tolist() == [-(2**63), -(2**63)]
    assert columns["history"].offsets.tolist() == [0, 3, 3]
    assert columns["history"].valid.tolist() == [1, 0]
    assert columns["price"].valid.tolist() == [1, 1, 0, 0]
    assert columns["zip"].values[1] == b"\xff"
    assert "tags" not in columns


def test_columns_may_have_one_user_row(signature: ModelSignature) -> None:
    columns, batch, by_rows = decode(signature, inputs={"user": [1], "item": [1, 2, 3], "tags": [["a"], [], None]})
    assert (batch, by_rows) == (3, False)
    assert columns["user"].rows == 1
    assert columns["tags"].valid.tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({}, "instances"),
        ({"instances": [], "inputs": {}}, "instances"),
        ({"instances": [{"user": 1, "item": 2}], "x": 1}, "x"),
        ({"instances": {"user": 1}}, "instances"),
        ({"instances": [[1]]}, "instances"),
        ({"instances": [{"user": 1, "itme": 2}]}, "itme"),
        ({"instances": [{"user": 1}]}, "item"),
        ({"instances": [{"user": 1, "item": 1}, {"user": 1}]}, "item"),
        ({"instances": [{"user": 1, "item": 1.5}]}, "item"),
        ({"instances": [{"user": 1, "item": 2**64}]}, "item"),
        ({"instances": [{"user": 1, "item": 1, "price": [1]}]}, "price"),
        ({"instances": [{"user": 1, "item": 1, "price": 1}]}, "price"),
        ({"instances": [{"user": 1, "item": 1, "history": 1}]}, "history"),
        ({"instances": [{"user": 1, "item": 1, "history": ["a"]}]}, "history"),
        ({"instances": [{"user": 1, "item": 1, "zip": {"b64": "!"}}]}, "zip"),
        ({"instances": [{"user": 1, "item": 1, "history.lengths": 1}]}, "history.lengths"),
        ({"instances": [{"user": 1, "item": 1}] * 9}, "batch"),
        ({"inputs": [1]}, "inputs"),
        ({"inputs": {"user": 1, "item": [1]}}, "user"),
        ({"inputs": {"user": [1, 2], "item": [1]}}, "user"),
        ({"inputs": {"user": [1], "item": [1], "history": [[1], [2]]}}, "history"),
    ],
)
def test_a_bad_request_is_refused_by_field(signature: ModelSignature, request_: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        decode(signature, **request_)
    assert raised.value.field == field


def test_predictions_are_plain_for_one_output_and_named_for_more(signature: ModelSignature) -> None:
    score = np.array([[0.25], [0.5]], np.float32)
    one = ModelSignature("m", signature.raw, [OutputSignature("score", "FP32", (1,))], 8)
    assert json.loads(encode_predict(one, [score], True)) == {"predictions": [0.25, 0.5]}
    assert json.loads(encode_predict(signature, [score, score], True))["predictions"][1] == {"score": 0.5, "like": 0.5}
    assert json.loads(encode_predict(signature, [score, score], False))["outputs"]["like"] == [0.25, 0.5]
