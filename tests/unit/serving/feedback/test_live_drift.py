"""Drift of live columns from training: small by chance, large where the distribution is another one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serving.feedback.drift import Drift, DriftOfColumns
from serving.feedback.served_batch import ServedBatch, ServedRequest
from serving.protocol.signature import ModelSignature, OutputSignature
from storage.features import Column, FeatureSpec, column_from_rows

SPEC = FeatureSpec.model_validate(
    {
        "inputs": [
            {"name": "price", "dtype": "FP32"},
            {"name": "country", "dtype": "BYTES", "side": "user"},
            {"name": "user", "dtype": "INT64"},
            {"name": "items", "dtype": "INT64", "kind": "list", "missing": "null"},
        ],
        "features": [{"name": "price", "inputs": ["price"], "output": "dense"}],
    }
)
SIGNATURE = ModelSignature("m", SPEC.inputs, [OutputSignature("score", "FP32", (1,))], 512)
COUNTRIES = ["de", "fr", "it", "es"]


def columns(rng: np.random.Generator, rows: int, shift: float = 0.0, gone: str = "") -> dict[str, Column]:
    weights = np.array([0.6, 0.2, 0.1, 0.1]) if not shift else np.array([0.1, 0.1, 0.2, 0.6])
    raw: dict[str, list[Any]] = {
        "price": [None if rng.random() < 0.1 else float(value) for value in rng.normal(shift, 1, rows)],
        "country": [str(value) for value in rng.choice(COUNTRIES, rows, p=weights)],
        "user": [int(value) for value in rng.integers(0, 1 << 40, rows)],
        "items": [[1] * int(length) for length in rng.integers(0, 12 if not shift else 3, rows)],
    }
    return {entry.name: column_from_rows(entry, raw[entry.name]) for entry in SPEC.inputs if entry.name != gone}


def drift(shift: float, live_rows: int = 4000, gone: str = "") -> tuple[dict[str, Drift], Drift]:
    rng = np.random.default_rng(0)
    scores = rng.random(256).astype(np.float32).reshape(256, 1)
    found = DriftOfColumns(SPEC.inputs, columns(rng, 256), {"score": scores}, 256, 1800.0)
    for number in range(live_rows // 100):
        outputs = [np.clip(rng.random((100, 1)) + shift / 4, 0, 1).astype(np.float32)]
        requests = [ServedRequest(f"r{number}", 0.0, 0, 100, 0)]
        batch = ServedBatch(columns(rng, 100, shift, gone), outputs, 100, requests, SIGNATURE, "1.0", "main", 0)
        found.add(batch, 1.0 + number)
    return {each.name: each for each in found.inputs()}, found.scores()[0]


def test_rows_like_those_of_training_have_no_more_than_chance() -> None:
    inputs, score = drift(0.0)
    for each in (*inputs.values(), score):
        assert each.psi is not None
        assert each.psi < 3 * each.by_chance
    assert inputs["price"].nulls == pytest.approx(0.1, abs=0.03)


def test_other_rows_have_a_large_index() -> None:
    inputs, score = drift(2.0)
    for name in ("price", "country", "items"):
        psi = inputs[name].psi
        assert psi is not None
        assert psi > 0.25
    assert score.psi is not None
    assert score.psi > 0.25
    # Ids are spread over the bins whichever they are.
    assert inputs["user"].psi is not None
    assert inputs["user"].psi < 0.2


def test_an_input_that_does_not_come_any_more_is_all_nulls() -> None:
    inputs, _ = drift(0.0, gone="items")
    assert inputs["items"].nulls == 1.0
    assert inputs["items"].psi is not None
    assert inputs["items"].psi > 1


def test_few_rows_have_no_index_and_old_rows_leave() -> None:
    inputs, _ = drift(0.0, live_rows=300)
    assert inputs["price"].psi is None
    rng = np.random.default_rng(0)
    found = DriftOfColumns(SPEC.inputs, columns(rng, 256), {}, 256, 10.0)
    requests = [ServedRequest("r", 0.0, 0, 100, 0)]
    for now in (100.0, 111.0, 122.0):
        outputs = [np.zeros((100, 1), np.float32)]
        found.add(ServedBatch(columns(rng, 100), outputs, 100, requests, SIGNATURE, "1.0", "main", 0), now)
    assert found.inputs()[0].rows == 200
