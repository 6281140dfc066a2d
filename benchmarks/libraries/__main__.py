"""Tries the models of the libraries: `python -m benchmarks.libraries --help`."""

from __future__ import annotations

import json as json_module
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

from benchmarks.libraries.environment import enter
from benchmarks.libraries.page import PAGE, rewritten
from benchmarks.libraries.trained import Model
from benchmarks.libraries.trials import ANSWERED, Trial, fixed_threads, try_models
from emberline.cli.command import Command, LocalPath
from emberline.cli.frame import run_command

NAME = "python -m benchmarks.libraries"


@click.command(cls=Command, name=NAME)
@click.option("--only", multiple=True, metavar="[LIBRARY/]MODEL", help="Try these, such as deepctr-torch/DeepFM.")
@click.option("--list", "list_them", is_flag=True, help="Print the models and stop.")
@click.option("--json", type=LocalPath(dir_okay=False), help="Write the results here.")
@click.option("--write-page", is_flag=True, help=f"Write these rows of {PAGE.name}.")
@click.option("--keep", type=LocalPath(file_okay=False), help="Leave the model repository and the log here.")
def command(only: tuple[str, ...], list_them: bool, json: Path | None, write_page: bool, keep: Path | None) -> None:
    """Train the models of torch-rechub, DeepCTR-Torch and RecBole, publish, serve and compare them.

    Every model is trained by its library's own code on MovieLens. One server answers fresh rows of all of them. The
    exit code is 1 if an answer differs from torch's.

    \b
    Example:
      python -m benchmarks.libraries --only torch-rechub/DIN --only GRU4Rec
      python -m benchmarks.libraries --write-page
    """
    enter()
    fixed_threads()
    known = all_models()
    models = [model for model in known if wanted(model, only)]
    if list_them:
        click.echo("\n".join(f"{model.library}/{model.name}" for model in models))
        return
    folder = keep or Path(tempfile.mkdtemp())
    try:
        trials = try_models(models, folder, _say)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    answered = sum(trial.state == ANSWERED for trial in trials)
    click.echo(f"{answered} of {len(trials)} models are answered as torch does")
    if json is not None:
        json.write_text(json_module.dumps([asdict(trial) for trial in trials], indent=1) + "\n", encoding="utf-8")
    if write_page:
        names = [f"{model.library}/{model.name}" for model in known]
        PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), trials, names), encoding="utf-8")
    if any(trial.state == "different" for trial in trials):
        sys.exit(1)


def all_models() -> list[Model]:
    """Returns the models of all libraries; they must be importable."""
    from benchmarks.libraries import deepctr, recbole, rechub

    listed: list[Callable[[], list[Model]]] = [rechub.models, deepctr.models, recbole.models]
    return [model for models in listed for model in models()]


def wanted(model: Model, only: tuple[str, ...]) -> bool:
    """Returns whether a model is one of those named; all are where none is named."""
    return not only or model.name in only or f"{model.library}/{model.name}" in only


def _say(trial: Trial) -> None:
    difference = "" if trial.difference is None else f" {trial.difference:.1e}"
    times = f"{trial.train_s:.1f} s + {trial.publish_s:.1f} s"
    click.echo(f"{trial.library}/{trial.name}: {trial.state}{difference}, {times} {trial.reason[:200]}")


if __name__ == "__main__":
    run_command(command, sys.argv[1:], NAME)
