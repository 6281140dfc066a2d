"""`emberline compare` over real trainings: the table, the page, and runs that have not ended."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from emberline.cli.compare import command
from emberline.comparison.page import to_html, write_page
from emberline.comparison.runs import read_run, read_runs
from storage.errors import InvalidInput, NotFound
from tests.support.html_page import Page
from trainer import TrainConfig, train
from trainer.config_errors import parse_config
from trainer.config_paths import with_value
from trainer.loop import TrainingLoop


def changed(config: TrainConfig, **values: object) -> TrainConfig:
    content: object = config.model_dump(mode="json", exclude_unset=True)
    for path, value in values.items():
        content = with_value(content, path.replace("__", "."), value)
    return parse_config(TrainConfig, content)


@pytest.fixture(scope="module")
def runs(
    clicks: Path,
    fresh_clicks: Path,
    clicks_config: Callable[..., TrainConfig],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Trains three runs: one learns, one hardly does, and one is smaller and stopped after its first epoch."""
    folder = tmp_path_factory.mktemp("runs")
    base = clicks_config()
    asked = {
        "learns": changed(base, optimizer__sparse__lr=0.5),
        "slow": changed(base, optimizer__sparse__lr=1e-6, optimizer__dense__lr=1e-6),
        "narrow": changed(base, **{f"tables__{name}__dim": 4 for name in ("users", "items", "tags")}),
    }
    for name, config in asked.items():
        with pytest.MonkeyPatch.context() as patched:
            if name == "narrow":
                stop_after_an_epoch(patched)
            try:
                train(config, clicks, output=folder / name, valid=fresh_clicks, limit=2000, progress=False)
            except MemoryError:
                assert name == "narrow"
    return folder


def stop_after_an_epoch(patched: pytest.MonkeyPatch) -> None:
    real = TrainingLoop._step

    def stepping(loop: TrainingLoop, batch: object) -> float:
        if loop.position.epoch == 1:
            raise MemoryError
        return real(loop, batch)  # type: ignore[arg-type]

    patched.setattr(TrainingLoop, "_step", stepping)


def compare(*arguments: object) -> str:
    runner = CliRunner(env={"COLUMNS": "220"})
    return runner.invoke(command, list(map(str, arguments)), catch_exceptions=False, standalone_mode=False).output


def test_the_table_has_what_differs_and_the_best_first(runs: Path) -> None:
    folders = [runs / name for name in ("slow", "narrow", "learns")]
    _, head, _, *rows = compare(*folders).splitlines()
    names = re.split(r"  +", head.strip())
    assert names[:4] == ["run", "auc", "log_loss", "loss"]
    assert {"optimizer.sparse.lr", "optimizer.dense.lr", "tables.users.dim and 2 more"} <= set(names)
    assert not [name for name in names if name.startswith(("training", "inputs", "features"))]
    found = json.loads(compare(*folders, "--json"))
    figures = [run["metrics"]["auc"] for run in found["runs"]]
    assert figures == sorted(figures, reverse=True)
    shown = [(row.split()[0], row.split()[1]) for row in rows]
    assert shown == [(run["run"], f"{run['metrics']['auc']:.5f}") for run in found["runs"]]
    by_run = {run["run"]: run for run in found["runs"]}
    assert by_run["slow"]["parameters"]["optimizer.sparse.lr"] == 1e-06
    assert by_run["narrow"]["parameters"]["tables.users.dim"] == 4
    assert (by_run["narrow"]["finished"], by_run["learns"]["finished"]) == (False, True)
    ends = {row.split()[0]: row for row in rows}
    assert ends["narrow"].endswith("after epoch 1")
    assert ends["learns"].endswith("done")
    assert by_run["learns"]["metrics"]["auc"] == read_run(runs / "learns").metrics["auc"]
    assert sorted(found) == ["direction", "failed", "metric", "runs"]


def test_another_metric_orders_by_its_own_direction(runs: Path) -> None:
    found = json.loads(compare(runs / "slow", runs / "learns", "--metric", "log_loss", "--json"))
    assert found["direction"] == "minimize"
    losses = [run["metrics"]["log_loss"] for run in found["runs"]]
    assert losses == sorted(losses)


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(runs: Path, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    compare(*(runs / name for name in ("slow", "narrow", "learns")), "--output", output)
    text = output.read_text(encoding="utf-8")
    page = Page(text)
    tags = [tag for tag, _ in page.seen]
    assert not {"script", "link", "img", "iframe"} & set(tags)
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert [attrs["id"] for tag, attrs in page.seen if tag == "section"] == ["runs", "epochs", "parameters"]
    # curves of auc, log_loss and loss; parallel axes; a scatter for each of the three groups of parameters
    assert tags.count("svg") == 3 + 1 + 3
    figure = read_run(runs / "learns").metrics["auc"]
    assert f"learns: auc {figure:.5g} at the end" in text
    # each point of a curve is one epoch of one run
    assert text.count('<circle class="point c') == 3 * (2 + 2 + 1)
    drawn = [attrs["points"] or "" for tag, attrs in page.seen if tag == "polyline"]
    numbers = [float(number) for points in drawn for pair in points.split() for number in pair.split(",")]
    assert numbers
    assert all(0 <= number <= 1060 for number in numbers)


def test_a_link_and_a_pipe_stay_what_they_are(tmp_path: Path) -> None:
    """Replacing /dev/stdout, which is such a link, would break every other program of the machine."""
    file, link, pipe = tmp_path / "file.html", tmp_path / "link.html", tmp_path / "pipe"
    link.symlink_to(file)
    write_page(link, "whole")
    assert link.is_symlink()
    assert file.read_text() == "whole"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_page(pipe, "whole")
    assert os.read(reading, 100) == b"whole"
    os.close(reading)
    assert pipe.is_fifo()


def test_many_runs_have_one_that_stands_out(runs: Path) -> None:
    ended, stopped = read_run(runs / "learns", "best"), read_run(runs / "slow")
    text = to_html("many", [ended, *[stopped] * 10], "auc", minimize=False, failed=[("0007", "killed <by> SIGKILL")])
    Page(text)
    assert text.count('<polyline class="curve other"') == 3 * 10
    assert "killed &lt;by&gt; SIGKILL" in text


def test_names_are_as_long_as_needed(runs: Path) -> None:
    twin = runs / "again" / "learns"
    twin.parent.mkdir(exist_ok=True)
    if not twin.exists():
        twin.symlink_to(runs / "learns")
    assert [run.name for run in read_runs([runs / "learns", twin])] == [f"{runs.name}/learns", "again/learns"]


def test_what_cannot_be_compared_is_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="holds no run"):
        compare(tmp_path)
    with pytest.raises(InvalidInput, match="--metric acu: no run has it; did you mean 'auc'"):
        compare(runs / "learns", "--metric", "acu")
    (tmp_path / "page.html").touch()
    with pytest.raises(InvalidInput, match="--overwrite replaces it"):
        compare(runs / "learns", "--output", tmp_path / "page.html")


def test_a_run_that_stopped_early_has_the_figures_of_the_model_that_it_kept(
    clicks: Path, fresh_clicks: Path, clicks_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    config = changed(
        clicks_config(epochs="12"),
        training__early_stopping={"patience": 2},
        optimizer__dense__lr=0.05,
        optimizer__sparse__lr=1.0,
    )
    report = train(config, clicks, output=tmp_path / "run", valid=fresh_clicks, limit=2000, progress=False)
    assert report.best_epoch is not None
    assert report.best_epoch < len(report.epochs) < 12
    run = read_run(tmp_path / "run")
    assert run.metrics["auc"] == report.auc == report.epochs[report.best_epoch - 1].auc
    assert run.metrics["loss"] == report.epochs[report.best_epoch - 1].loss
    assert len(run.epochs) == len(report.epochs)
