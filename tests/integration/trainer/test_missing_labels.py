"""Labels that only some rows have, and labels that leave nothing to learn."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from emberline.cli.train import command as train_command
from emberline.cli.update import command as update_command
from storage.errors import InvalidInput
from tests.e2e.test_tasks_served import ratings, text_of
from tests.integration.trainer.test_training import at_step, content, quiet
from trainer import load_trained
from trainer.config import TrainConfig, parse_text

LEARNED = """
tasks:
  - {name: like, label: liked, group: user, metrics: [auc, gauc, log_loss], missing_label: ignore}
  - {name: stars, label: stars, loss: mean_squared_error, missing_label: ignore}
  - {name: order, label: stars, loss: listwise, group: user, missing_label: ignore}
  - {name: seen, label: seen}
sample_weight: importance
"""


def config_of(learned: str = LEARNED) -> TrainConfig:
    return parse_text(text_of("deepfm").replace(text_of("deepfm").partition("inputs:")[0], f"model_name: m{learned}"))


def holed(rows: int, seed: int) -> pa.Table:
    """Makes ratings of which one in five has stars, and one in two says whether it was liked."""
    table, rng = ratings(rows, seed), np.random.default_rng(seed + 100)
    for name, share in (("stars", 0.2), ("liked", 0.5)):
        values = table[name].to_numpy(zero_copy_only=False)
        column = pa.array(values, mask=rng.random(rows) > share)
        table = table.set_column(table.column_names.index(name), name, column)
    return table.append_column("seen", pa.array(rng.integers(0, 2, rows)))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("holed")
    pq.write_table(holed(2000, 1), place / "train.parquet")
    pq.write_table(holed(400, 2), place / "valid.parquet")
    return place


def test_rows_with_some_labels_are_learned_from_and_resumed_to_the_bit(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, given = config_of(), {"valid": data / "valid.parquet"}
    whole = quiet(config, data / "train.parquet", tmp_path / "whole", **given)
    with monkeypatch.context() as patched:
        at_step(patched, 40, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            quiet(config, data / "train.parquet", tmp_path / "cut", **given)
    resumed = quiet(config, data / "train.parquet", tmp_path / "cut", resume=True, **given)
    assert content(config, resumed.checkpoint) == content(config, whole.checkpoint)
    assert whole.warnings == []
    assert load_trained(tmp_path / "whole").evaluate(data / "train.parquet").auc > 0.7
    # The metrics are those of the rows that have the label, by their weights.
    valid = pq.read_table(data / "valid.parquet")
    found = load_trained(tmp_path / "whole").evaluate(valid.filter(valid["stars"].is_valid()))
    for task in ("stars", "order"):
        assert found.metrics[task] == pytest.approx(whole.metrics[task])


def test_nulls_of_text_files_are_missing_labels_too(data: Path, tmp_path: Path) -> None:
    table = pq.read_table(data / "train.parquet").drop_columns(["clicked"])
    pyarrow.csv.write_csv(table, tmp_path / "train.csv")
    pq.write_table(table, tmp_path / "train.parquet")
    text = text_of("deepfm").replace("  - {name: clicked, dtype: INT64, kind: list, max_length: 8}\n", "")
    text = "\n".join(line for line in text.split("\n") if "clicked" not in line)
    config = parse_text(text.replace(text.partition("inputs:")[0], f"model_name: m{LEARNED}"))
    runs = [quiet(config, tmp_path / f"train.{kind}", tmp_path / kind, valid=0.1) for kind in ("csv", "parquet")]
    assert runs[0].metrics == runs[1].metrics


def test_a_null_is_refused_by_its_row_unless_the_task_ignores_it(data: Path, tmp_path: Path) -> None:
    config = config_of("\ntasks: [{name: like, label: liked}]\n")
    with pytest.raises(InvalidInput, match=r"row \d+.*the label column 'liked' holds nulls; .*missing_label: ignore"):
        quiet(config, data / "train.parquet", tmp_path / "run")


def test_negative_sampling_leaves_rows_without_a_label_out(data: Path, tmp_path: Path) -> None:
    learned = "\ntasks: [{name: like, label: liked, missing_label: ignore}]\ndata: {negative_sampling: 0.5}\n"
    report = quiet(config_of(learned), data / "train.parquet", tmp_path / "run")
    labels = pq.read_table(data / "train.parquet")["liked"].drop_null().to_numpy(zero_copy_only=False)
    assert report.rows / 3 == pytest.approx(labels.sum() + 0.5 * (~labels).sum(), rel=0.05)


@pytest.mark.parametrize(
    ("task", "column", "words"),
    [
        ("", pa.nulls(2000, pa.int64()), "the task 'like' (label x) has learned nothing: no row"),
        ("", pa.array([0] * 2000), "(label x) has nothing to tell apart: every label that was trained on is 0; check"),
        (", loss: mean_squared_error", pa.array([3.5] * 2000), "every label that was trained on is 3.5; check"),
    ],
)
def test_labels_that_leave_nothing_to_learn_are_said_at_the_end_and_reported(
    data: Path, tmp_path: Path, task: str, column: pa.Array, words: str
) -> None:
    table = pq.read_table(data / "train.parquet").append_column("x", column).slice(0, 500)
    pq.write_table(table, tmp_path / "train.parquet")
    tasks = f"[{{name: like, label: x, missing_label: ignore{task}}}, {{name: seen, label: seen}}]"
    (tmp_path / "model.yaml").write_text(json.dumps(config_of(f"\ntasks: {tasks}\n").model_dump(mode="json")))
    given = ["--data", str(tmp_path / "train.parquet"), "--valid", "0.2", "--output", str(tmp_path / "run"), "--quiet"]
    done = CliRunner().invoke(train_command, [str(tmp_path / "model.yaml"), *given])
    assert done.exit_code == 0, done.output
    warnings = json.loads((tmp_path / "run" / "report.json").read_text())["warnings"]
    assert words in warnings[0]
    assert all(f"warning: {text}\n" in done.output for text in warnings)
    if not task:
        assert "the task 'like' has no auc on the rows to evaluate on: their labels are all of one kind" in "".join(
            warnings[1:]
        )
        return
    pq.write_table(table.slice(0, 200), tmp_path / "newer.parquet")
    more = ["--data", str(tmp_path / "newer.parquet"), "--repository", str(tmp_path / "models"), "--quiet"]
    done = CliRunner().invoke(update_command, [str(tmp_path / "run"), *more])
    assert done.exit_code == 0, done.output
    assert words in done.output


def test_negative_sampling_that_leaves_one_class_is_named(data: Path, tmp_path: Path) -> None:
    config = config_of("\ntasks: [{name: seen, label: seen}]\ndata: {negative_sampling: 1.0e-9}\n")
    report = quiet(config, data / "train.parquet", tmp_path / "run")
    assert len(report.warnings) == 1
    assert "is 1, as data.negative_sampling (1e-09) left no row with label 0" in report.warnings[0]
