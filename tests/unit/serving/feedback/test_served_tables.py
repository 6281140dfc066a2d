"""Tables of served requests: reading them as training data gives the features that the server computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from serving.feedback.rows import served_table
from serving.feedback.served_batch import ServedBatch, ServedRequest
from serving.protocol.signature import ModelSignature, OutputSignature
from storage.features import Column, FeatureEngine, FeatureSpec, column_from_rows
from storage.features.arrow import column_from_arrow
from storage.served_log import AT, ID, ROW, keyed_hash

SPEC = FeatureSpec.model_validate(
    {
        "inputs": [
            {"name": "user", "dtype": "INT64", "side": "user", "column": "account"},
            {"name": "text", "dtype": "BYTES", "missing": "null"},
            {"name": "price", "dtype": "FP32", "missing": "null", "default": 1.5},
            {"name": "pair", "dtype": "FP32", "width": 2},
            {"name": "tags", "dtype": "BYTES", "kind": "list", "missing": "null"},
            {"name": "near", "dtype": "FP32", "kind": "list"},
            {"name": "big", "dtype": "UINT64", "nulls": "error"},
            {"name": "seen", "dtype": "INT64", "unit": "s", "column_type": "timestamp"},
            {"name": "stars", "dtype": "FP32", "column_type": "integer"},
            {"name": "on", "dtype": "BOOL"},
        ],
        "features": [
            {"name": "user", "inputs": ["user"], "output": "ids", "table": "a"},
            {"name": "text", "inputs": ["text"], "output": "ids", "table": "a", "transforms": [{"op": "hash"}]},
            {"name": "tags", "inputs": ["tags"], "output": "ids", "table": "a", "transforms": [{"op": "hash"}]},
            {"name": "big", "inputs": ["big"], "output": "ids", "table": "a"},
            {"name": "seen", "inputs": ["seen"], "output": "ids", "table": "a"},
            {"name": "on", "inputs": ["on"], "output": "ids", "table": "a"},
            {"name": "price", "inputs": ["price"], "output": "dense"},
            {"name": "pair", "inputs": ["pair"], "output": "dense"},
            {"name": "stars", "inputs": ["stars"], "output": "dense"},
        ],
    }
)
SIGNATURE = ModelSignature(
    "m", SPEC.inputs, [OutputSignature("score", "FP32", ()), OutputSignature("v", "FP32", (3,))], 64
)
ENGINE = FeatureEngine(SPEC)


def request_rows(rng: np.random.Generator, rows: int) -> dict[str, list[Any]]:
    def some(make: Any) -> list[Any]:
        return [None if rng.random() < 0.2 else make() for _ in range(rows)]

    return {
        "user": [int(rng.integers(-(2**62), 2**62))],
        "text": some(lambda: bytes(rng.integers(0, 256, int(rng.integers(0, 9)), dtype=np.uint8))),
        "price": some(lambda: float(np.float32(rng.random()))),
        "pair": [[float(np.float32(rng.random())) for _ in range(2)] for _ in range(rows)],
        "tags": some(lambda: [f"t{each}" for each in rng.integers(0, 9, int(rng.integers(0, 4)))]),
        "near": some(lambda: [float(np.float32(rng.random())) for _ in range(int(rng.integers(0, 4)))]),
        "big": [int(rng.integers(0, 2**63)) * 2 + 1 for _ in range(rows)],
        "seen": some(lambda: int(rng.integers(0, 2**40))),
        "stars": some(lambda: float(rng.integers(0, 6))),
        "on": some(lambda: bool(rng.random() < 0.5)),
    }


def batch_of(rng: np.random.Generator, rows: int, cuts: list[tuple[int, int]], gone: set[str]) -> ServedBatch:
    raw = request_rows(rng, rows)
    columns: dict[str, Column] = {
        entry.name: column_from_rows(entry, raw[entry.name]) for entry in SPEC.inputs if entry.name not in gone
    }
    outputs = [rng.random(rows, np.float32), rng.random((rows, 3), np.float32)]
    requests = [ServedRequest(f"r{rng.integers(1 << 40)}", 0.0, *cut, int(rng.integers(1 << 50))) for cut in cuts]
    return ServedBatch(columns, outputs, rows, requests, SIGNATURE, "3.17", "main", 100)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_logged_has_the_features_that_were_served(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batches, expected, kept = [], [], []
    for number in range(int(rng.integers(1, 5))):
        gone = {"text", "price", "tags"} if number % 2 else set()
        rows = int(rng.integers(1, 7))
        cut = int(rng.integers(0, rows + 1))
        # All of it, or one part, or two parts with or without a gap.
        cuts = (
            [(0, rows)]
            if number == 0
            else [each for each in ((0, cut), (min(cut + number - 1, rows), rows)) if each[0] < each[1]]
        )
        if not cuts:
            continue
        batch = batch_of(rng, rows, cuts, gone)
        batches.append(batch)
        served = ENGINE.run(batch.columns, rows)
        for request in batch.requests:
            for row in range(request.start, request.stop):
                expected.append(features_of(served, row))
                kept.append((request.id, row - request.start, batch.outputs[0][row], batch.outputs[1][row].tolist()))
    table = served_table(batches, [(entry, entry.source) for entry in SPEC.inputs], {})
    columns = {entry.name: column_from_arrow(table.column(entry.source), entry) for entry in SPEC.inputs}
    read = ENGINE.run(columns, table.num_rows)
    assert [features_of(read, row) for row in range(table.num_rows)] == expected
    found = zip(
        *(table.column(name).to_pylist() for name in (ID, ROW, "served_score.score", "served_score.v")), strict=True
    )
    assert list(found) == [(a, b, float(c), d) for a, b, c, d in kept]
    assert table.schema.field(AT).type == pa.timestamp("us", "UTC")
    # As the training data was: a float that came from whole numbers, and a time.
    assert pa.types.is_integer(table.schema.field("stars").type)
    assert pa.types.is_timestamp(table.schema.field("seen").type)


def features_of(batch: Any, row: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, bags in batch.ids.items():
        found[name] = bags.values[bags.offsets[row] : bags.offsets[row + 1]].tolist()
    return found | {name: values[row].tolist() for name, values in batch.dense.items()}


def test_hashed_values_are_digests_with_the_key_and_nulls_stay_nulls() -> None:
    key = b"0123456789abcdef"
    rng = np.random.default_rng(5)
    batch = batch_of(rng, 6, [(0, 6)], set())
    columns = [(entry, entry.source + ".hash") for entry in SPEC.inputs if entry.name in ("user", "text", "tags")]
    table = served_table(
        [batch], columns, {name: lambda value: keyed_hash(key, value) for name in ("user", "text", "tags")}
    )
    user = int(batch.columns["user"].values[0])
    assert table.column("account.hash").to_pylist() == [keyed_hash(key, user)] * 6
    assert keyed_hash(key, 17) == keyed_hash(key, b"17") != keyed_hash(b"another key, 16b", 17)
    texts = batch.columns["text"]
    valid = np.ones(6) if texts.valid is None else texts.valid
    wanted = [
        keyed_hash(key, value) if there else None for value, there in zip(texts.values.tolist(), valid, strict=True)
    ]
    assert table.column("text.hash").to_pylist() == wanted
    assert "account" not in table.column_names


def test_few_requests_of_a_large_batch_are_copied_and_others_are_not() -> None:
    rng = np.random.default_rng(1)
    batch = batch_of(rng, 6, [(0, 1), (1, 2)], set())
    few = batch.parts(0.5)
    assert [part.batch for part in few] == [1, 1]
    assert not np.shares_memory(few[0].outputs[0], batch.outputs[0])
    names = [(entry, entry.source) for entry in SPEC.inputs]
    assert served_table(few, names, {}).equals(served_table([batch], names, {}))
    assert batch_of(rng, 6, [(0, 6)], set()).parts(0.5)[0].batch == 6
    assert batch.parts(0.0) == []
