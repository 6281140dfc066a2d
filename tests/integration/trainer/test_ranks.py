"""Trainings by several ranks: the same model as one process trains, whatever is killed and however many go on."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.trainer.ranks_process import train_with_ranks
from tests.reference.files import read_table
from trainer import load_trained, train
from trainer.checkpoint import checkpoints, read_commit
from trainer.config import parse_text

CONFIG = """
model_name: clicks
label: clicked
inputs:
  - {name: user, dtype: INT64}
  - {name: item, dtype: BYTES, column: item_code}
  - {name: tags, dtype: INT64, kind: list}
  - {name: history, dtype: BYTES, kind: list, missing: "null"}
  - {name: price, dtype: FP32}
features:
  - {name: user, inputs: [user], output: ids, table: users}
  - {name: item, inputs: [item], transforms: [{op: hash, seed: 5}], output: ids, table: items}
  - {name: tags, inputs: [tags], output: ids, table: tags, pooling: mean, absent: {type: constant, scale: 0.1}}
  - {name: history, inputs: [history], transforms: [{op: hash, seed: 5}, {op: truncate, length: 4, keep: last}],
     output: ids, table: items, pooling: none, length: 4}
  - {name: price, inputs: [price], transforms: [{op: log}], output: dense}
tables:
  - {name: users, dim: 4, admit_after: 3, absent: {type: uniform, scale: 0.05}}
  - {name: items, dim: 8}
  - {kind: hashed, name: tags, dim: 4, buckets: 5}
model: {type: din, target: item, sequence: history, hidden: [16], attention: [8], dropout: DROPOUT}
optimizer:
  sparse: {lr: 0.2, initial_accumulator: 0.01}
  dense: {lr: 0.005}
  clip_norm: 0.5
training: {batch_size: 96, epochs: 2, seed: 3, shuffle_rows: 1500, checkpoint_every_steps: 50}
"""
SAME_MODEL = CONFIG.replace("DROPOUT", "0.0")


def figures(output: Path) -> list[tuple[float, float, float]]:
    """Returns loss, AUC and log-loss of each epoch."""
    report = json.loads((output / "report.json").read_text())
    return [(entry["loss"], entry["auc"], entry["log_loss"]) for entry in report["epochs"]]


def rows_of(version: Path) -> dict[str, dict[int, np.ndarray]]:
    manifest = json.loads((version / "manifest.json").read_text())
    return {entry["name"]: read_table(version, entry) for entry in manifest["tables"]}


@pytest.mark.slow
def test_three_ranks_then_two_train_the_model_that_one_process_trains(clicks: Path, tmp_path: Path) -> None:
    """Sums of gradients are made in another order, so figures agree within rounding. Some ranks have no row of the last
    batch, which has one.

    Adagrad's accumulators start at 0.01: from 0.0001, its first steps are so long that rounding grows a thousandfold,
    to more on some processors than on others.
    """
    one, several = tmp_path / "one", tmp_path / "several"
    given: dict[str, Any] = {"valid": 0.1, "limit": 4801}
    alone = train(
        parse_text(SAME_MODEL), clicks, output=one, repository=tmp_path / "one-models", progress=False, **given
    )
    first = SAME_MODEL.replace("epochs: 2", "epochs: 1")
    assert train_with_ranks(3, first, clicks, several, **given) == [0, 0, 0]
    options: dict[str, Any] = {**given, "resume": True, "repository": tmp_path / "several-models"}
    assert train_with_ranks(2, SAME_MODEL, clicks, several, **options) == [0, 0]
    assert json.loads((several / "report.json").read_text())["steps"] == 2 * 46
    for mine, theirs in zip(figures(one), figures(several), strict=True):
        assert theirs == pytest.approx(mine, rel=1e-6)

    a, b = load_trained(one), load_trained(several)
    for name, table in a.tables.items():
        ids, rows, slots, counts, _, _ = table.export_rows()
        other = b.tables[name].export_rows()
        np.testing.assert_array_equal(ids, other[0])
        np.testing.assert_array_equal(counts, other[3])
        np.testing.assert_allclose(rows, other[1], atol=2e-6)
        np.testing.assert_allclose(slots, other[2], rtol=1e-3, atol=1e-9)
        assert [list(part) for part in table.export_counts()] == [list(p) for p in b.tables[name].export_counts()]
    assert alone.published is not None
    versions = rows_of(alone.published), rows_of(tmp_path / "several-models" / "clicks" / "1")
    for name, published in versions[0].items():
        assert list(published) == list(versions[1][name])
        np.testing.assert_allclose(list(published.values()), list(versions[1][name].values()), atol=2e-6)


@pytest.mark.slow
def test_a_start_from_a_run_and_an_early_stop_are_those_of_one_process(clicks: Path, tmp_path: Path) -> None:
    train(parse_text(SAME_MODEL.replace("epochs: 2", "epochs: 1")), clicks, output=tmp_path / "first", progress=False)
    stopping = "epochs: 4, eval_every: 1, early_stopping: {metric: log_loss, patience: 1, min_delta: 0.3}"
    config = SAME_MODEL.replace("epochs: 2", stopping)
    options: dict[str, Any] = {"valid": 0.1, "start_from": tmp_path / "first"}
    one, several = tmp_path / "one", tmp_path / "several"
    train(parse_text(config), clicks, output=one, progress=False, **options)
    assert train_with_ranks(2, config, clicks, several, **options) == [0, 0]
    reports = [json.loads((each / "report.json").read_text()) for each in (one, several)]
    assert [(each["best_epoch"], len(each["epochs"])) for each in reports] == [(1, 2), (1, 2)]
    assert reports[0]["started"] == reports[1]["started"]
    a, b = load_trained(one), load_trained(several)
    for name, table in a.tables.items():
        mine, theirs = table.export_rows(), b.tables[name].export_rows()
        np.testing.assert_array_equal(mine[0], theirs[0])
        np.testing.assert_array_equal(mine[3], theirs[3])
        np.testing.assert_allclose(mine[1], theirs[1], atol=2e-6)


@pytest.mark.slow
def test_a_killed_rank_costs_nothing(clicks: Path, tmp_path: Path) -> None:
    """Its batches since the last commit are trained again, to the same bytes: the model draws random numbers, and has
    statistics of the rows.
    """
    own = "model: {type: 'tests.integration.trainer.ranks_models:Normed', width: 16}"
    config = re.sub("model: {type.*", own, CONFIG).replace("checkpoint_every_steps: 50", "checkpoint_every_steps: 20")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert train_with_ranks(2, config, clicks, whole) == [0, 0]
    codes = train_with_ranks(2, config, clicks, killed, dies=(1, 53))
    assert codes == [1, -signal.SIGKILL]
    assert [read_commit(commit).state.position.step for commit in checkpoints(killed)] == [20, 40]
    assert train_with_ranks(2, config, clicks, killed, resume=True) == [0, 0]
    for one, other in zip(checkpoints(whole), checkpoints(killed), strict=True):
        a, b = read_commit(one), read_commit(other)
        assert a.files == b.files
        assert (a.state.position.step, a.state.position.loss_sum) == (b.state.position.step, b.state.position.loss_sum)
    assert figures(whole) == figures(killed)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_losses_are_those_of_one_process_after_a_thousand_steps(clicks: Path, tmp_path: Path, ranks: int) -> None:
    """With steps that follow gradients. Adam's, and Adagrad's first ones, are as long for a gradient of mere rounding
    as for any other.
    """
    config = SAME_MODEL.replace("epochs: 2", "epochs: 16").replace("checkpoint_every_steps: 50", "eval_every: 0")
    config = config.replace("sparse: {lr: 0.2, initial_accumulator: 0.01}", "sparse: {type: sgd, lr: 1.0}")
    config = config.replace("dense: {lr: 0.005}", "dense: {type: SGD, lr: 0.05}")
    train(parse_text(config), clicks, output=tmp_path / "one", progress=False)
    assert train_with_ranks(ranks, config, clicks, tmp_path / "several") == [0] * ranks
    reports = [json.loads((tmp_path / name / "report.json").read_text()) for name in ("one", "several")]
    assert reports[0]["steps"] == reports[1]["steps"] >= 1000
    losses = [[entry["loss"] for entry in report["epochs"]] for report in reports]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    assert losses[0][-1] < losses[0][0] - 0.01
