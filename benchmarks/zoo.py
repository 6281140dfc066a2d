"""Claims: every model of the zoo ranks better than a logistic regression on its own features, and than trees.

Each model is trained with five seeds by a configuration of `trainer/configs`, with early stopping on the validation
rows. The baselines get the same features and are chosen on the same validation rows. Only then are the test rows
scored. A claim holds when the 95% intervals of the difference are above zero: that over seeds, and that over resampled
test rows for the first seed.

    python -m benchmarks.zoo                          # about an hour on two cores; fetches MovieLens once
    python -m benchmarks.zoo --quick                  # one seed, small sets
    python -m benchmarks.zoo --only criteo-like --repeats 5
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.peers import PeerMissingError
from benchmarks.report import Row
from benchmarks.zoo_baselines import Baseline, boosted_trees, logistic_regression, parts_of
from storage.errors import EmberlineError
from trainer import load_config, load_trained, train
from trainer.config import TrainConfig
from trainer.config_errors import parse_config
from trainer.datasets import DatasetReport, write_criteo_like, write_movielens, write_synthetic, write_wide
from trainer.metrics import auc, paired_bootstrap

CONFIGS = Path(__file__).parents[1] / "trainer" / "configs"
CACHE = Path.home() / ".cache" / "emberline"
SEEDS = 5
#: Student's t for 95% by seeds.
_STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
STOPPING = {"metric": "auc", "patience": 2}

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Contest:
    """A data set, and the changes of a configuration for each model."""

    write: Callable[[Path, int], DatasetReport]
    rows: int
    quick_rows: int
    #: By model: the name of its configuration, and what is changed in it, by dotted path.
    models: Mapping[str, tuple[str, Mapping[str, Any]]]


_FILMS = ("deepfm", "dlrm", "wide_deep", "dcnv2", "din", "sasrec", "hstu", "mmoe", "ple")
#: What `emberline init` drafts for sets of this size.
_SMALL: dict[str, dict[str, Any]] = {
    "wide_deep": {"model": {"type": "wide_deep", "hidden": [32], "dropout": 0.3}},
    "dlrm": {"model": {"type": "dlrm", "bottom": [32], "top": [32], "dropout": 0.3}},
    "dcnv2": {"model": {"type": "dcnv2", "cross_layers": 2, "rank": 32, "hidden": [32], "dropout": 0.3}},
    "deepfm": {"model": {"type": "deepfm", "hidden": [32], "dropout": 0.3}},
}
#: docs/tuning.md has the search.
_FALLING = {
    "sparse": {"type": "adagrad", "lr": 0.2, "initial_accumulator": 1e-4},
    "schedule": {"type": "linear", "steps": 938, "end": 0.05},
}
CONTESTS = {
    "movielens": Contest(
        lambda folder, _: write_movielens(folder, cache=CACHE),
        100_000,
        100_000,
        {model: ("movielens" if model == "deepfm" else f"movielens_{model}", {}) for model in _FILMS},
    ),
    "criteo-like": Contest(
        lambda folder, rows: write_criteo_like(folder, rows=rows),
        300_000,
        30_000,
        {
            model: ("criteo_like", {**changes, "optimizer": _FALLING} if model == "dcnv2" else changes)
            for model, changes in _SMALL.items()
        },
    ),
    "wide": Contest(lambda folder, rows: write_wide(folder, rows=rows), 200_000, 20_000, {"deepfm": ("wide40", {})}),
    "synthetic": Contest(
        lambda folder, rows: write_synthetic(folder, rows=rows, ids=rows // 2),
        400_000,
        40_000,
        {"deepfm": ("synthetic", {})},
    ),
}
PARTS = tuple(CONTESTS)
QUICK_S = 180.0


def measure(run: Run) -> None:
    """Measures every data set."""
    for name, contest in CONTESTS.items():
        if run.wants(name) and not run.is_late(name):
            try:
                _measure(run, name, contest)
            except EmberlineError as error:
                run.report.remark(f"{name}: {error}")


def _measure(run: Run, name: str, contest: Contest) -> None:
    folder = run.work / name
    rows = run.size(contest.rows, contest.quick_rows)
    contest.write(folder, rows)
    files = {part: folder / f"{part}.parquet" for part in ("train", "valid", "test")}
    baselines: dict[str, dict[str, Baseline]] = {}
    for model, (config_name, changes) in contest.models.items():
        if run.is_late(f"{model} on {name}"):
            return
        config = changed(load_config(CONFIGS / f"{config_name}.yaml"), changes)
        key = config.model_dump_json(include={"inputs", "features"})
        if key not in baselines:
            baselines[key] = _baselines(run, config, files)
        labels = parts_of(config, {"test": files["test"]})["test"].labels
        seeds = 1 if run.quick else min(run.repeats, SEEDS)
        scores = [trained_scores(config, files, run.work / "run", seed) for seed in range(1, seeds + 1)]
        for against, baseline in baselines[key].items():
            run.report.rows.append(_row(f"{model} on {name}", labels, scores, against, baseline))


def _baselines(run: Run, config: TrainConfig, files: Mapping[str, Path]) -> dict[str, Baseline]:
    parts = parts_of(config, files)
    found = {"logistic regression": logistic_regression(parts)}
    try:
        found["LightGBM"] = boosted_trees(parts)
    except PeerMissingError as error:
        run.report.remark(str(error))
    return found


def changed(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """Returns a configuration with other sections, and with early stopping."""
    content = {**config.model_dump(mode="json"), **changes}
    content["training"]["early_stopping"] = content["training"]["early_stopping"] or STOPPING
    return parse_config(TrainConfig, content)


def trained_scores(config: TrainConfig, files: Mapping[str, Path], place: Path, seed: int) -> Array:
    """Trains with a seed and returns the scores of the test rows, (N,)."""
    seeded = config.model_copy(update={"training": config.training.model_copy(update={"seed": seed})})
    shutil.rmtree(place, ignore_errors=True)
    train(seeded, files["train"], output=place, valid=files["valid"], progress=False)
    return load_trained(place).predict(files["test"]).reshape(-1)


def _row(claim: str, labels: Array, scores: list[Array], against: str, baseline: Baseline) -> Row:
    other = auc(labels, baseline.scores)
    ours = [auc(labels, each) for each in scores]
    differences = [each - other for each in ours]
    mean = float(np.mean(differences))
    count = len(ours)
    half = 0.0 if count < 2 else _STUDENT[count] * float(np.std(differences, ddof=1)) / count**0.5
    resampled = paired_bootstrap(labels, scores[0], baseline.scores)
    ratios = [each / other for each in ours]
    return Row(
        claim=claim,
        ours=float(np.mean(ours)),
        other=other,
        ratio=float(np.mean(ratios)),
        target=1.0,
        holds=mean - half > 0.0 and resampled.low > 0.0,
        spread=(min(ratios), max(ratios)),
        repeats=count,
        unit="AUC",
        against=against,
        note=f"{mean:+.4f} (seeds {mean - half:+.4f} to {mean + half:+.4f}; rows {resampled.low:+.4f} to "
        f"{resampled.high:+.4f}); {baseline.setting}",
    )


if __name__ == "__main__":
    script("zoo")
