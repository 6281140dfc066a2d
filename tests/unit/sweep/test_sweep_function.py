"""Refusals of the function sweep() before a trial starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from emberline.sweep import sweep
from storage.errors import ConfigError, InvalidInput
from tests.unit.sweep.test_space import CONFIG

VALUES = {"optimizer.sparse.lr": [0.1, 0.2]}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"data": pa.table({"a": [1]})}, "data: trials are processes of their own; expected paths of files, got Table"),
        ({"data": []}, "data: trials are processes"),
        ({"valid": pa.table({"a": [1]})}, "valid: trials are processes of their own"),
        ({"valid": None}, r"valid: auc is taken on rows to evaluate on; give some \(--valid\)"),
        ({"metric": "acc"}, "metric: the model is not measured by 'acc'"),
        ({"sampler": "tpp"}, "sampler is 'tpp', expected one of tpe, random, grid"),
        ({"direction": "max"}, "direction is 'max', expected one of maximize, minimize"),
        ({"jobs": 0}, "jobs is 0, expected 1 or more"),
        ({"parameters": {}}, "parameters: expected a mapping of dotted paths"),
        ({"parameters": {"optimizer.sparse.lrr": [1]}}, "lrr: unknown key; did you mean 'lr'"),
        ({"output": "s3://bucket/sweep"}, "output"),
    ],
)
def test_what_cannot_be_swept_is_refused_by_name(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {"data": "clicks.parquet", "parameters": VALUES, "output": tmp_path / "sweep", "valid": 0.1}
    with pytest.raises((ConfigError, InvalidInput), match=words):
        sweep(CONFIG, **{**usual, **given})
    assert not (tmp_path / "sweep").exists()
