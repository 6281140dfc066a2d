from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serving.protocol.columns import to_columns
from serving.protocol.json_tensors import decode_json_tensor
from serving.protocol.signature import ModelSignature
from serving.protocol.tensors import WireTensor
from storage.errors import InvalidInput
from storage.features import Column


def tensors(**given: tuple[str, tuple[int, ...], list[Any]]) -> dict[str, WireTensor]:
    result = {}
    for key, (dtype, shape, data) in given.items():
        name = key.replace("__", ".")
        result[name] = decode_json_tensor(name, dtype, shape, int(np.prod(shape)), data)
    return result


BASE = {"user": ("INT64", (1, 1), [5]), "item": ("INT64", (2, 1), [1, 2])}


def rows(column: Column) -> list[Any]:
    values = column.values.tolist()
    assert column.offsets is not None
    return [values[a:b] for a, b in zip(column.offsets[:-1], column.offsets[1:], strict=True)]


def test_a_user_side_of_one_row_goes_with_any_batch(signature: ModelSignature) -> None:
    columns, batch = to_columns(signature, tensors(**BASE))
    assert batch == 2
    assert columns["user"].rows == 1


def test_lengths_cut_the_padding_off(signature: ModelSignature) -> None:
    columns, _ = to_columns(
        signature,
        tensors(
            **BASE,
            history=("INT64", (2, 3), [1, 2, 3, 4, 5, 6]),
            history__lengths=("INT32", (2, 1), [1, 0]),
            tags=("BYTES", (2, 2), ["a", "b", "c", "d"]),
            tags__lengths=("INT64", (2,), [1, 2]),
        ),
    )
    assert rows(columns["history"]) == [[1], []]
    assert rows(columns["tags"]) == [[b"a"], [b"c", b"d"]]


def test_without_lengths_every_row_is_whole(signature: ModelSignature) -> None:
    columns, _ = to_columns(signature, tensors(**BASE, history=("INT64", (2, 2), [1, 2, 3, 4])))
    assert rows(columns["history"]) == [[1, 2], [3, 4]]


def test_nulls_come_from_json_and_from_the_companion(signature: ModelSignature) -> None:
    columns, _ = to_columns(
        signature,
        tensors(
            user=("INT64", (2, 1), [None, 1]),
            item=("INT64", (2, 1), [1, 2]),
            price=("FP32", (2, 2), [1, None, 3, 4]),
            price__valid=("BOOL", (2, 2), [True, True, True, False]),
            history=("INT64", (2, 2), [None, [7, None]]),
        ),
    )
    assert columns["user"].valid is not None
    assert columns["user"].valid.tolist() == [0, 1]
    assert columns["price"].valid is not None
    assert columns["price"].valid.tolist() == [1, 0, 1, 0]
    assert columns["history"].valid is not None
    assert columns["history"].valid.tolist() == [0, 1]
    assert rows(columns["history"]) == [[], [7]]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"item": None}, "item"),
        ({"user": None}, "user"),
        ({"item": ("INT64", (2, 2), [1, 2, 3, 4])}, "item"),
        ({"item": ("INT64", (2, 1, 1), [1, 2])}, "item"),
        ({"item": ("INT64", (9, 1), [1] * 9)}, "batch"),
        ({"user": ("INT64", (3, 1), [1, 2, 3])}, "user"),
        ({"price": ("FP32", (1, 2), [1, 2])}, "price"),
        ({"price": ("FP32", (4,), [1, 2, 3, 4])}, "price"),
        ({"history": ("INT64", (2,), [1, 2])}, "history"),
        ({"history__lengths": ("INT32", (2, 1), [1, 1])}, "history"),
        ({"history": ("INT64", (2, 1), [1, 2]), "history__lengths": ("INT32", (2, 1), [1, 2])}, "history.lengths"),
        ({"history": ("INT64", (2, 1), [1, 2]), "history__lengths": ("INT32", (2, 1), [1, -1])}, "history.lengths"),
        ({"history": ("INT64", (2, 1), [1, 2]), "history__lengths": ("INT32", (1, 1), [1])}, "history.lengths"),
        ({"history": ("INT64", (2, 1), [1, 2]), "history__lengths": ("INT32", (2, 1), [1, None])}, "history.lengths"),
        ({"price": ("FP32", (2, 2), [1, 2, 3, 4]), "price__valid": ("BOOL", (2, 1), [True, True])}, "price.valid"),
    ],
)
def test_a_request_that_does_not_add_up_is_refused_by_name(
    signature: ModelSignature, change: dict[str, Any], field: str
) -> None:
    given = {key: value for key, value in {**BASE, **change}.items() if value is not None}
    with pytest.raises(InvalidInput) as raised:
        to_columns(signature, tensors(**given))
    assert raised.value.field == field


def test_a_batch_of_nothing_is_a_batch(signature: ModelSignature) -> None:
    columns, batch = to_columns(
        signature,
        tensors(user=("INT64", (1, 1), [5]), item=("INT64", (0, 1), []), history=("INT64", (0, 4), [])),
    )
    assert batch == 0
    assert columns["item"].rows == 0
