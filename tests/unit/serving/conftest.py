"""A signature with every kind of input."""

from __future__ import annotations

import pytest

from serving.protocol.signature import ModelSignature, OutputSignature
from storage.features import InputSpec


@pytest.fixture(scope="session")
def signature() -> ModelSignature:
    inputs = [
        InputSpec(name="user", dtype="INT64", side="user"),
        InputSpec(name="item", dtype="INT64"),
        InputSpec(name="history", dtype="INT64", kind="list", missing="null"),
        InputSpec(name="tags", dtype="BYTES", kind="list", missing="null"),
        InputSpec(name="price", dtype="FP32", width=2, missing="null"),
        InputSpec(name="zip", dtype="BYTES", missing="null"),
        InputSpec(name="fresh", dtype="BOOL", missing="null"),
    ]
    outputs = [OutputSignature("score", "FP32", (1,)), OutputSignature("like", "FP32", (1,))]
    return ModelSignature("ranker", inputs, outputs, 8)
