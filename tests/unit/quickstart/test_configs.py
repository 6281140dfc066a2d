"""Every config file of ours reads, builds, and says what its columns are."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.config import load_config
from trainer.models import MODELS, build_model, build_tables

CONFIGS = sorted((Path(__file__).parents[3] / "trainer" / "configs").glob("*.yaml"))


def test_every_model_of_the_zoo_has_one() -> None:
    assert {load_config(path).model.type for path in CONFIGS} == set(MODELS)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_builds_its_model(path: Path) -> None:
    config = load_config(path)
    model = build_model(config, build_tables(config))
    assert sum(weight.numel() for weight in model.parameters()) > 10


def test_the_wide_config_takes_forty_columns_without_lists() -> None:
    config = load_config(next(path for path in CONFIGS if path.stem == "wide40"))
    assert len(config.inputs) == 40
    assert {entry.kind for entry in config.inputs} == {"fixed"}
    assert {entry.dtype for entry in config.inputs} == {"BYTES", "UINT64", "INT64", "FP32"}
