"""Cases that the fuzzers found, each as the smallest input that shows it."""

from __future__ import annotations

import asyncio
import gzip
import json
import time

import numpy as np
import pytest

from serving.errors import BodyTooLarge, status_of
from serving.http.encoding import MAX_MEMBERS, decompress
from serving.http.messages import error_response
from serving.protocol.json_tensors import to_values
from serving.protocol.json_text import parse_json
from storage.errors import InvalidInput


@pytest.mark.parametrize("text", [b'[NaN, "\\ud800"]', b'{"\\uDFFF": Infinity}', b'[-Infinity, "a\\uD83Db"]'])
def test_half_of_a_pair_is_no_text_beside_a_number_that_is_none_either(text: bytes) -> None:
    # Python's own parser takes it, but an error text that repeats it cannot be sent: the request had no answer.
    with pytest.raises(InvalidInput, match="not valid JSON"):
        parse_json(text, what="the request")


def test_a_whole_pair_is_a_letter() -> None:
    assert parse_json(b'["\\ud83d\\ude00", NaN]', what="the request")[0] == "\U0001f600"


def test_an_error_always_has_a_text_that_can_be_sent() -> None:
    error = InvalidInput("got '\ud800'")
    assert status_of(error)[2] == "got '?'"
    assert json.loads(error_response(error).content) == {"error": "got '?'"}


def test_a_float_that_fp32_does_not_hold_is_infinite_without_a_warning() -> None:
    values, _ = to_values("price", "FP32", [1e39, -1e39, 0.5])
    assert isinstance(values, np.ndarray)
    assert values.tolist() == [float("inf"), -float("inf"), 0.5]


class Room:
    """Stands in for the memory of a request that may take one MiB."""

    max_body = 1 << 20

    def hold(self, size: int) -> None:
        pass

    def too_large(self, got: str) -> BodyTooLarge:
        return BodyTooLarge(got)


def test_a_body_of_many_empty_gzip_members_takes_no_time() -> None:
    empty, body = gzip.compress(b""), gzip.compress(b"{}")
    assert asyncio.run(decompress(body + empty * (MAX_MEMBERS - 1), b"gzip", Room())) == b"{}"
    began = time.process_time()
    for bomb in (body + empty * 50_000, empty * 50_000):
        with pytest.raises(InvalidInput, match="members"):
            asyncio.run(decompress(bomb, b"gzip", Room()))
    assert time.process_time() - began < 2.0  # The time used to grow with the square of the length: 8 MB took 38 s.
