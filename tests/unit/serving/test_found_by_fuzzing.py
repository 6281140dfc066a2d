"""What the fuzzers found, each as the smallest input that shows it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from serving.errors import status_of
from serving.http.messages import error_response
from serving.protocol.json_tensors import to_values
from serving.protocol.json_text import parse_json
from storage.errors import InvalidInput


@pytest.mark.parametrize("text", [b'[NaN, "\\ud800"]', b'{"\\uDFFF": Infinity}', b'[-Infinity, "a\\uD83Db"]'])
def test_half_of_a_pair_is_no_text_beside_a_number_that_is_none_either(text: bytes) -> None:
    # Python's own parser takes it, and an error's text that repeats it cannot be sent: the request had no answer.
    with pytest.raises(InvalidInput, match="not valid JSON"):
        parse_json(text, what="the request")


def test_a_whole_pair_is_a_letter() -> None:
    assert parse_json(b'["\\ud83d\\ude00", NaN]', what="the request")[0] == "\U0001f600"


def test_an_error_always_has_a_text_that_can_be_sent() -> None:
    error = InvalidInput("got '\ud800'")
    assert status_of(error)[2] == "got '?'"
    assert json.loads(error_response(error).content) == {"error": "got '?'"}


@pytest.mark.parametrize("value", [1e39, -1e39, 10**39])
def test_a_number_that_fp32_does_not_hold_is_refused_not_made_infinite(value: float) -> None:
    with pytest.raises(InvalidInput, match="outside FP32"):
        to_values("price", "FP32", [0.5, value])
    assert np.isinf(to_values("price", "FP32", [float("inf")])[0]).all()
    assert to_values("price", "FP32", [3.4e38, 1e-50])[0].tolist() == [np.float32(3.4e38), 0.0]
