"""The contest of the zoo: its configurations build their models, and its baselines learn what the rows say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks import zoo
from benchmarks.zoo_baselines import Baseline, Part, boosted_trees, logistic_regression
from storage.features import Jagged
from trainer import load_config
from trainer.metrics import auc
from trainer.models import MODELS, build_model, build_tables


def part(rows: int, seed: int) -> Part:
    """Returns rows whose label follows from one id of fifty, from a list of ids, and from a number."""
    rng = np.random.default_rng(seed)
    one, lengths, number = rng.integers(0, 50, rows), rng.integers(0, 4, rows), rng.normal(size=rows)
    many = rng.integers(0, 20, int(lengths.sum()))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    found = np.add.reduceat(np.append(np.where(many < 10, 1.0, -1.0), 0.0), np.minimum(offsets[:-1], len(many)))
    logit = 2.0 * np.sin(one) + number + np.where(lengths > 0, found, 0.0)
    labels = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    bags = {"one": Jagged(one, np.arange(rows + 1)), "many": Jagged(many, offsets)}
    return Part(bags, number[:, None].astype(np.float32), labels)


@pytest.fixture(scope="module")
def parts() -> dict[str, Part]:
    return {"train": part(3000, 1), "valid": part(1000, 2), "test": part(1000, 3)}


@pytest.mark.parametrize(("baseline", "least"), [(logistic_regression, 0.85), (boosted_trees, 0.7)])
def test_a_baseline_learns_ids_lists_and_numbers(
    parts: dict[str, Part], baseline: Callable[[dict[str, Part]], Baseline], least: float
) -> None:
    if baseline is boosted_trees:
        pytest.importorskip("lightgbm", reason="LightGBM is an extra, emberline[bench]")
    found = baseline(parts)
    assert auc(parts["test"].labels, found.scores) > least
    assert found.valid_auc > least


def test_a_claim_holds_when_both_intervals_are_above_zero(parts: dict[str, Part]) -> None:
    labels, rng = parts["test"].labels, np.random.default_rng(5)
    noise = rng.normal(size=(6, len(labels)))
    weak = Baseline(labels + 2.0 * noise[0], "C 1", 0.6)
    better = [labels + noise[seed] for seed in range(1, 5)]
    row = zoo._row("ours", labels, better, "weak", weak)
    assert row.holds
    assert row.ratio > 1
    assert row.repeats == 4
    assert not zoo._row("ours", labels, [better[0], labels + 2.0 * noise[5]], "weak", weak).holds
    assert not zoo._row("ours", labels, [weak.scores], "weak", weak).holds


@pytest.mark.parametrize("name", zoo.CONTESTS)
def test_every_configuration_builds_its_model(name: str) -> None:
    for model, (config_name, changes) in zoo.CONTESTS[name].models.items():
        config = zoo.changed(load_config(zoo.CONFIGS / f"{config_name}.yaml"), changes)
        assert config.model.type == model
        assert config.training.early_stopping is not None
        assert isinstance(build_model(config, build_tables(config)), MODELS[model])
