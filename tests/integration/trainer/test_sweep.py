"""Sweeps as users run them: trials in processes, failures and kills on the way, and what lies in the folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from emberline.cli import main
from emberline.sweep import sweep
from storage.errors import ConfigError
from tests.support.html_page import Page
from trainer import TrainConfig, load_config, load_trained

pytestmark = pytest.mark.slow

Make = Callable[..., TrainConfig]


@pytest.fixture
def model(config_of: Make, tmp_path: Path) -> Path:
    """Writes the configuration of a DeepFM, whose tables need one dim."""
    path = tmp_path / "model.yaml"
    content = config_of(epochs="2", checkpoint_every_steps="2").model_dump(mode="json", exclude_unset=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def arguments(model: Path, clicks: Path, output: Path, *more: str) -> list[str]:
    data = ["--data", str(clicks), "--limit", "2000", "--valid", "0.25"]
    return ["sweep", str(model), *data, "--output", str(output), "--quiet", *more]


def results(output: Path) -> list[dict[str, Any]]:
    content = json.loads((output / "trials.json").read_text())
    return [{key: entry[key] for key in entry if key != "seconds"} for entry in content["trials"]]


def test_a_sweep_goes_on_after_failures_and_its_best_configuration_trains(
    model: Path, clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "sweep"
    tried = [
        "--sampler",
        "grid",
        "--jobs",
        "2",
        "--set",
        "tables.users.dim=8,4",
        "--set",
        "optimizer.sparse.lr=0.2,1e-6",
    ]
    main(arguments(model, clicks, output, *tried))
    trials = results(output)
    assert [(each["values"]["tables.users.dim"], each["state"]) for each in trials] == [
        (8, "complete"),
        (8, "complete"),
        (4, "fail"),
        (4, "fail"),
    ]
    assert "dim" in trials[2]["error"]
    best = max(trials[:2], key=lambda each: float(each["metric"]))
    assert best["values"]["optimizer.sparse.lr"] == 0.2
    config = load_config(output / "best.yaml")
    assert config.optimizer.sparse.lr == 0.2
    report = json.loads((output / "trials" / f"{best['number']:04d}" / "run" / "report.json").read_text())
    assert report["auc"] == best["metric"]
    printed = capsys.readouterr().out
    assert f"best: trial {best['number']}" in printed
    assert "failed: " in printed
    page = (output / "page.html").read_text(encoding="utf-8")
    Page(page)
    assert f"best auc</dt><dd>{best['metric']:.5f}</dd><small>{best['number']:04d}</small>" in page
    assert "deepfm needs one dim for all tables, got [4, 8]" in page

    models = tmp_path / "models"
    again = ["--data", str(clicks), "--limit", "2000", "--valid", "0.25", "--output", str(tmp_path / "run"), "--quiet"]
    main(["train", str(output / "best.yaml"), *again, "--repository", str(models)])
    assert json.loads((tmp_path / "run" / "report.json").read_text())["auc"] == best["metric"]
    assert (models / "clicks" / "1").is_dir()


@pytest.mark.long
def test_a_sweep_that_is_killed_ends_as_an_undisturbed_one(model: Path, clicks: Path, tmp_path: Path) -> None:
    tried = ["--trials", "3", "--set", "optimizer.sparse.lr=log:0.01..1.0", "--set", "model.hidden=[16],[8]"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    main(arguments(model, clicks, whole, *tried))

    command = [sys.executable, "-m", "emberline", *arguments(model, clicks, killed, *tried)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[3])
    commits = killed / "trials" / "0001" / "run" / "checkpoints"
    deadline = time.monotonic() + 120
    while not list(commits.glob("commit-*")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    main(arguments(model, clicks, killed, *tried, "--resume"))
    assert results(killed) == results(whole)
    assert (killed / "best.yaml").read_bytes() == (whole / "best.yaml").read_bytes()


@pytest.mark.long
def test_ctrl_c_saves_the_trials_and_a_killed_trial_is_noted(model: Path, clicks: Path, tmp_path: Path) -> None:
    output = tmp_path / "sweep"
    tried = ["--trials", "2", "--set", "training.epochs=400,500"]
    command = [sys.executable, "-m", "emberline", *arguments(model, clicks, output, *tried)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    first, second = (output / "trials" / name / "run" for name in ("0000", "0001"))

    def until_training(run: Path) -> None:
        deadline = time.monotonic() + 120
        while not list(run.glob("checkpoints/commit-*")) and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.02)

    until_training(first)
    os.kill(child_of(process.pid), signal.SIGKILL)
    until_training(second)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "--resume to go on" in errors
    trials = results(output)
    assert [each["state"] for each in trials] == ["fail", "running"]
    assert trials[0]["error"].startswith("killed by SIGKILL")
    assert "stopped after step" in (output / "trials" / "0001" / "log.txt").read_text()


@pytest.mark.long
def test_trials_that_were_stopped_go_on_with_other_jobs_and_their_own_threads(
    model: Path, clicks: Path, tmp_path: Path
) -> None:
    output = tmp_path / "sweep"
    tried = ["--trials", "3", "--set", "training.epochs=60,80", "--set", "training.checkpoint_every_steps=20"]
    command = [sys.executable, "-m", "emberline", *arguments(model, clicks, output, *tried, "--jobs", "2")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[3])
    runs = [output / "trials" / name / "run" / "checkpoints" for name in ("0000", "0001")]
    deadline = time.monotonic() + 120
    while not all(list(run.glob("commit-*")) for run in runs) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130
    assert [each["state"] for each in results(output)] == ["running", "running"]
    begun = [yaml.safe_load((run.parents[1] / "config.yaml").read_text()) for run in runs]
    assert all("threads" in content["training"] for content in begun)
    main(arguments(model, clicks, output, *tried, "--resume"))
    assert [each["state"] for each in results(output)] == ["complete"] * 3
    assert "threads" not in yaml.safe_load((output / "best.yaml").read_text())["training"]


@pytest.mark.long
def test_the_function_sweeps_as_the_command_does(model: Path, clicks: Path, tmp_path: Path) -> None:
    values = {"optimizer.sparse.lr": [0.2, 1e-6]}
    ended: list[int] = []
    given: dict[str, Any] = {"output": tmp_path / "function", "valid": 0.25, "limit": 2000, "sampler": "grid"}
    report = sweep(model, clicks, values, **given, on_end=lambda trial: ended.append(trial.number))
    tried = ["--set", "optimizer.sparse.lr=0.2,1e-6", "--sampler", "grid"]
    main(arguments(model, clicks, tmp_path / "command", *tried))
    assert results(tmp_path / "function") == results(tmp_path / "command")
    assert sorted(ended) == [0, 1]
    assert report.best.values == {"optimizer.sparse.lr": 0.2}
    assert report.trials[0] == report.best
    assert load_config(report.best_config).optimizer.sparse.lr == 0.2
    assert load_trained(report.run(report.best)).config.optimizer.sparse.lr == 0.2
    assert (tmp_path / "function" / "page.html").is_file()
    with pytest.raises(ConfigError, match="holds a sweep already"):
        sweep(model, clicks, values, **given)


def child_of(process: int) -> int:
    return int(Path(f"/proc/{process}/task/{process}/children").read_text().split()[0])


def test_a_sweep_is_not_resumed_with_other_values(
    model: Path, clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "sweep"
    main(arguments(model, clicks, output, "--trials", "1", "--set", "training.seed=3,4"))
    for more, message in (
        (("--set", "training.seed=3,4"), "holds a sweep already"),
        (("--set", "training.seed=5,6", "--resume"), "was begun with another parameters"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments(model, clicks, output, "--trials", "2", *more))
        assert ended.value.code == 1
        assert message in capsys.readouterr().err


def test_a_metric_that_no_report_has_is_refused_before_a_trial(
    model: Path, clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments(model, clicks, tmp_path / "sweep", "--metric", "log_los", "--set", "training.seed=3,4"))
    assert ended.value.code == 1
    assert "metric: the model is not measured by 'log_los'; did you mean 'log_loss'?" in (capsys.readouterr().err)


def test_pruning_stops_trials_that_are_worse_than_the_median(model: Path, clicks: Path, tmp_path: Path) -> None:
    output = tmp_path / "sweep"
    tried = ["--sampler", "grid", "--prune", "--set", "optimizer.sparse.lr=0.5,0.3,0.2,1e-6"]
    tried += ["--set", "training.epochs=12", "--set", "training.checkpoint_every_steps=100"]
    main(arguments(model, clicks, output, *tried))
    assert [each["state"] for each in results(output)] == ["complete"] * 3 + ["pruned"]
    assert "worse than the median" in results(output)[-1]["error"]
