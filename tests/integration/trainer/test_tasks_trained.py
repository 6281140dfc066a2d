"""Trainings of several tasks: a resumed one is the uninterrupted one to the bit, and every report has every metric."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from emberline.cli.train import command as train_command
from emberline.cli.update import command as update_command
from storage.errors import InvalidInput
from tests.e2e.test_tasks_served import FILMS, config_of, ratings, text_of
from tests.integration.trainer.test_training import at_step, content, quiet
from tests.support.films import made_up_films
from trainer import StartFrom, plan_start
from trainer.config import parse_text


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ratings")
    (place / "films").mkdir()
    for name, rows, seed in (("train", 2000, 1), ("newer", 300, 2), ("valid", 300, 3)):
        pq.write_table(ratings(rows, seed), place / f"{name}.parquet")
        pq.write_table(made_up_films(rows, seed), place / "films" / f"{name}.parquet")
    return place


@pytest.mark.parametrize("name", ["deepfm", "order", "movielens_two_tower"])
def test_a_resumed_training_of_several_tasks_is_the_same_to_the_bit(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    config = config_of(name)
    if name in FILMS:
        config = config.model_copy(update={"training": config.training.model_copy(update={"batch_size": 64})})
        data = data / "films"
    given = {"valid": data / "valid.parquet"}
    whole = quiet(config, data / "train.parquet", tmp_path / "whole", **given)
    with monkeypatch.context() as patched:
        at_step(patched, 40, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            quiet(config, data / "train.parquet", tmp_path / "cut", **given)
    resumed = quiet(config, data / "train.parquet", tmp_path / "cut", resume=True, **given)
    assert content(config, resumed.checkpoint) == content(config, whole.checkpoint)
    assert (resumed.metrics, resumed.epochs) == (whole.metrics, whole.epochs)


def test_all_metrics_are_printed_and_reported_by_task(data: Path, tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text(text_of("dlrm"), encoding="utf-8")
    rows = {name: str(data / f"{name}.parquet") for name in ("train", "newer", "valid")}
    run = ["--data", rows["train"], "--valid", rows["valid"], "--output", str(tmp_path / "run"), "--quiet"]
    done = CliRunner().invoke(train_command, [str(tmp_path / "model.yaml"), *run])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert {task: list(values) for task, values in report["metrics"].items()} == {
        "like": ["auc", "gauc", "log_loss", "calibration"],
        "stars": ["rmse", "mae"],
        "kind": ["accuracy", "log_loss"],
        "order": ["ndcg@10", "mrr"],
    }
    assert report["epochs"][-1]["metrics"] == report["metrics"]
    assert report["auc"] == report["metrics"]["like"]["auc"]
    for text in (f"like AUC {report['auc']:.4f}", f"order NDCG@10 {report['metrics']['order']['ndcg@10']:.4f}"):
        assert text in done.output
    more = ["--repository", str(tmp_path / "models"), "--valid", rows["valid"], "--quiet"]
    done = CliRunner().invoke(update_command, [str(tmp_path / "run"), "--data", rows["newer"], *more])
    assert done.exit_code == 0, done.output
    update = json.loads((tmp_path / "run" / "update.json").read_text())
    assert update["metrics_before"] == report["metrics"]
    before, after = (update[key]["stars"]["rmse"] for key in ("metrics_before", "metrics_after"))
    assert f"stars RMSE {before:.4f} -> {after:.4f}" in done.output


def test_a_label_that_does_not_fit_stops_the_training_with_the_task(data: Path, tmp_path: Path) -> None:
    table = pq.read_table(data / "train.parquet")
    wrong = table.set_column(table.column_names.index("liked"), "liked", pa.array([2] * table.num_rows))
    pq.write_table(wrong, tmp_path / "wrong.parquet")
    with pytest.raises(InvalidInput, match=r"task 'like': the label column 'liked' holds 2, expected 0 and 1"):
        quiet(parse_text(text_of("deepfm")), tmp_path / "wrong.parquet", tmp_path / "run")


@pytest.mark.parametrize("name", ["deepfm", "ple"])
def test_a_model_of_other_tasks_starts_with_the_heads_of_the_same_names(data: Path, tmp_path: Path, name: str) -> None:
    config = parse_text(text_of(name))
    quiet(config, data / "train.parquet", tmp_path / "run", repository=tmp_path / "models", limit=500)
    fewer = config.model_copy(update={"tasks": tuple(reversed(config.tasks[1:]))})
    fewer.__dict__.pop("targets", None)
    for source in (tmp_path / "run", tmp_path / "models" / name):
        whole = plan_start(config, StartFrom(source))
        assert {weight.change for weight in whole.weights} == {"taken"}
        some = {weight.name: weight for weight in plan_start(fewer, StartFrom(source)).weights}
        head = some["deep.2.bias"] if name == "deepfm" else some["towers.of_kind.2.bias"]
        assert (head.change, head.values) == (("cut", 6) if name == "deepfm" else ("taken", 4))
