from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.protocol.json_tensors import decode_json_tensor
from serving.protocol.json_text import dump_json, parse_json
from storage.errors import InvalidInput
from storage.features import BytesValues


def decode(dtype: str, shape: tuple[int, ...], data: Any) -> Any:
    return decode_json_tensor("x", dtype, shape, math.prod(shape), data)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_int64_ids_are_exact_over_their_whole_range(ids: list[int]) -> None:
    tensor = decode("INT64", (len(ids), 1), parse_json(json.dumps([[i] for i in ids]).encode(), what="x"))
    assert tensor.values.tolist() == ids
    assert tensor.nulls is None


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_uint64_ids_are_exact_over_their_whole_range(ids: list[int]) -> None:
    assert decode("UINT64", (len(ids),), parse_json(json.dumps(ids).encode(), what="x")).values.tolist() == ids


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        ("INT64", [1.0]),
        ("INT64", [True]),
        ("INT64", ["1"]),
        ("INT64", [2**63]),
        ("INT64", [1e300]),
        ("UINT64", [-1]),
        ("INT32", [2**31]),
        ("FP32", ["1"]),
        ("FP32", [True]),
        ("FP64", [10**400]),
        ("BOOL", [1]),
        ("BYTES", [1]),
        ("BYTES", ["\ud800"]),
        ("INT64", [{}]),
        ("INT64", {"a": 1}),
        ("INT64", None),
        ("INT64", [1, 2]),
        ("INT64", []),
        ("INT64", [[1]]),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(dtype: str, data: Any) -> None:
    with pytest.raises(InvalidInput, match="'x'") as raised:
        decode(dtype, (1,), data)
    assert raised.value.field == "x"


@pytest.mark.parametrize(
    "data", [[[1, 2], [3]], [[1, 2]], [[1, 2], 3], [[1, 2], [[3], 4]], [[1, 2], [3, 4], [5, 6]], [1, 2, 3]]
)
def test_ragged_and_misshapen_lists_are_refused(data: Any) -> None:
    with pytest.raises(InvalidInput, match="'x'"):
        decode("INT64", (2, 2), data)


def test_flat_and_nested_data_are_the_same_tensor() -> None:
    flat = decode("FP32", (2, 2), [1, 2.5, 3, 4])
    nested = decode("FP32", (2, 2), [[1, 2.5], [3, 4]])
    assert flat.values.tolist() == nested.values.tolist() == [1, 2.5, 3, 4]


def test_a_null_and_a_null_row_are_marked() -> None:
    tensor = decode("INT64", (2, 2), [None, [7, None]])
    assert tensor.nulls.tolist() == [True, True, False, True]
    assert tensor.values[2] == 7


def test_null_rows_cannot_stand_for_more_memory_than_the_bound() -> None:
    with pytest.raises(InvalidInput, match="too many"):
        decode("INT64", (2001, 4000), [[1] * 4000] + [None] * 2000)


def test_strings_become_utf8() -> None:
    tensor = decode("BYTES", (3,), ["", "é", None])
    assert isinstance(tensor.values, BytesValues)
    assert tensor.values.tolist() == [b"", "é".encode(), b""]
    assert tensor.nulls.tolist() == [False, False, True]


def test_nan_literals_are_read() -> None:
    assert np.isnan(parse_json(b"[NaN]", what="x")[0])


def test_float32_scores_come_back_bit_for_bit() -> None:
    values = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    assert np.array_equal(np.array(json.loads(dump_json({"a": values}))["a"], np.float32), values)


@pytest.mark.parametrize("text", [b"", b"{", b"[1,]", b"\xff", b"[" * 100_000, b"[NaN" + b"[" * 70_000, b"{'a':1}"])
def test_broken_json_is_an_invalid_input(text: bytes) -> None:
    with pytest.raises(InvalidInput, match="not valid JSON"):
        parse_json(text, what="the request")
