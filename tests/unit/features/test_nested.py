"""Lists of lists become one list a row where the input says so, from files and from requests alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from serving.protocol.signature import ModelSignature
from serving.protocol.v1 import decode_predict
from storage.data import DataRows, Wanted
from storage.errors import ConfigError, InvalidInput
from storage.features import FeatureEngine, FeatureSpec, InputSpec, column_from_arrow, column_from_rows
from storage.features.python_rows import column_rows

SESSIONS = InputSpec(name="sessions", dtype="INT64", kind="list", flatten=True)
NESTED = [[[1, 2], [3]], [[], None, [4]], None, [], [[5, 6, 7]]]
FLAT = [[1, 2, 3], [4], None, [], [5, 6, 7]]
INT64 = pa.int64()


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.list_(INT64)),
        pa.large_list(pa.list_(pa.int32())),
        pa.list_(pa.large_list(INT64)),
        pa.list_(pa.list_(pa.list_(INT64))),
        pa.list_(INT64),
    ],
    ids=str,
)
def test_every_layout_of_nested_lists_gives_the_flat_rows(kind: Any) -> None:
    values: list[Any] = NESTED
    if kind == pa.list_(INT64):
        values = FLAT
    elif pa.types.is_list(kind.value_type) and pa.types.is_list(kind.value_type.value_type):
        values = [None if row is None else [row, []] for row in NESTED]
    array = pa.array([None, *values], kind)
    chunks = pa.chunked_array([array.slice(1, 2), array.slice(3)])
    for given in (array.slice(1), chunks):
        assert column_rows(column_from_arrow(given, SESSIONS)) == FLAT


def test_inner_lists_of_a_fixed_size_and_nulls_among_values() -> None:
    pairs = pa.array([[[1, 2], None, [3, None]], None], pa.list_(pa.list_(INT64, 2)))
    assert column_rows(column_from_arrow(pairs, SESSIONS)) == [[1, 2, 3], None]
    prices = InputSpec(name="prices", dtype="FP32", kind="list", flatten=True)
    column = column_from_arrow(pa.array([[[1.5, None], [2.5]]]), prices)
    assert np.isnan(column_rows(column)[0][1])
    assert column.offsets is not None
    assert column.offsets.tolist() == [0, 3]
    words = InputSpec(name="words", dtype="BYTES", kind="list", flatten=True)
    assert column_rows(column_from_arrow(pa.array([[["a"], ["b", "é"]]]), words)) == [[b"a", b"b", "é".encode()]]


def test_rows_of_json_are_joined_as_those_of_files_are() -> None:
    assert column_rows(column_from_rows(SESSIONS, NESTED)) == FLAT
    assert column_rows(column_from_rows(SESSIONS, FLAT)) == FLAT
    with pytest.raises(InvalidInput, match="input 'sessions', row 0: expected INT64, got list"):
        column_from_rows(SESSIONS, [[1, [2]]])


def test_requests_and_files_give_the_same_features() -> None:
    spec = FeatureSpec.parse(
        {
            "inputs": [SESSIONS.model_dump()],
            "features": [
                {
                    "name": "items",
                    "inputs": ["sessions"],
                    "transforms": [{"op": "truncate", "length": 2, "keep": "last"}],
                    "output": "ids",
                    "table": "items",
                }
            ],
        }
    )
    engine = FeatureEngine(spec)
    rows = DataRows.open(pa.table({"sessions": NESTED}), Wanted(spec.inputs, learns=True))
    trained = engine.run({"sessions": column_from_arrow(rows.read()["sessions"], SESSIONS)}, 5).ids["items"]
    signature = ModelSignature("m", spec.inputs, [], 1024)
    for body in (
        b'{"inputs": {"sessions": [[[1, 2], [3]], [[], null, [4]], null, [], [[5, 6, 7]]]}}',
        b'{"inputs": {"sessions": [[1, 2, 3], [4], null, [], [5, 6, 7]]}}',
    ):
        columns, batch, _ = decode_predict(signature, body)
        served = engine.run(columns, batch).ids["items"]
        assert served.values.tolist() == trained.values.tolist() == [2, 3, 4, 6, 7]
        assert served.offsets.tolist() == trained.offsets.tolist() == [0, 2, 3, 3, 3, 5]


def test_without_it_nested_lists_are_refused_with_what_to_do() -> None:
    plain = SESSIONS.model_copy(update={"flatten": False})
    with pytest.raises(ConfigError, match=r"sessions.*list<.*; set flatten: true for this input"):
        DataRows.open(pa.table({"sessions": NESTED}), Wanted((plain,), learns=True))
    with pytest.raises(ValidationError, match="input 'sessions' is fixed, so it has nothing to flatten"):
        InputSpec(name="sessions", dtype="INT64", flatten=True)
    assert "flatten" not in plain.model_dump()
