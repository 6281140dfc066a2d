"""Reads what a training run was started with and what came out, from the files that training wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import EmberlineError, NotFound
from trainer.config_paths import leaves
from trainer.report import named_metrics

_NO_METRICS = ("epoch", "loss")
# Figures whose names hold one of these are better the smaller they are.
_SMALLER = ("loss", "error", "rmse", "mae", "mse", "seconds", "bytes")


@dataclass(frozen=True)
class RunFigures:
    """The parameters and figures of one run."""

    #: What tells it from the others, such as the name of its folder.
    name: str
    folder: Path
    #: The configuration by dotted path, as JSON values.
    parameters: dict[str, Any]
    #: Of each epoch `epoch`, `loss` and the metrics that were taken, by name.
    epochs: list[dict[str, float]]
    #: The metrics of the model that the run ended with, and `loss` of its epoch; of the last epoch while it trains.
    metrics: dict[str, float]
    #: Steps, rows, seconds and the like of the whole run; empty when it did not end.
    totals: dict[str, float]

    @property
    def finished(self) -> bool:
        """Returns whether the training came to its end."""
        return bool(self.totals)


def read_run(folder: Path, name: str = "") -> RunFigures:
    """Reads a run, also one that is under way or was stopped. Raises NotFound for a folder without one."""
    config = _json(folder / "config.json")
    if not isinstance(config, Mapping):
        raise NotFound(f"{folder}: holds no run (config.json is missing); give the output folder of a training")
    report = _json(folder / "report.json")
    report = report if isinstance(report, Mapping) else {}
    history = report.get("epochs")
    if not isinstance(history, list):
        history = _history(folder)
    epochs = [_figures(entry) for entry in history if isinstance(entry, Mapping)]
    metrics: dict[str, float] = {}
    for entry in epochs:
        metrics |= {key: value for key, value in entry.items() if key != "epoch"}
        if entry["epoch"] == report.get("best_epoch"):
            break  # early stopping kept the model of this one
    totals = {key: float(report[key]) for key in ("steps", "rows", "seconds", "rows_per_second") if key in report}
    if totals:
        tables = report.get("tables") or []
        totals["table_rows"] = float(sum(table["rows"] for table in tables))
        totals["table_bytes"] = float(sum(table["memory_bytes"] for table in tables))
    return RunFigures(name or folder.name, folder, dict(leaves(config)), epochs, metrics, totals)


def read_runs(folders: Sequence[Path]) -> list[RunFigures]:
    """Reads runs, named by the shortest ends of their paths that tell them apart."""
    paths = [folder.absolute() for folder in folders]
    length = 1
    longest = max((len(path.parts) for path in paths), default=1)
    while length < longest and len({path.parts[-length:] for path in paths}) < len(set(paths)):
        length += 1
    names = ["/".join(path.parts[-length:]) for path in paths]
    if all(name.endswith("/run") for name in names):  # those of trials
        names = [name.removesuffix("/run") for name in names]
    return [read_run(path, name) for path, name in zip(paths, names, strict=True)]


def differing(runs: Sequence[RunFigures]) -> list[str]:
    """Returns the parameters whose values differ, in the order of the configuration."""
    paths = dict.fromkeys(path for run in runs for path in run.parameters)
    return [path for path in paths if len({json.dumps(run.parameters.get(path)) for run in runs}) > 1]


def metric_names(runs: Sequence[RunFigures]) -> list[str]:
    """Returns the metrics of the evaluations, and `loss`, which comes last."""
    names = dict.fromkeys(name for run in runs for name in run.metrics if name not in _NO_METRICS)
    return [*names, "loss"]


def smaller_is_better(metric: str) -> bool:
    """Returns whether a metric is an error, by its name."""
    return any(part in metric.lower() for part in _SMALLER)


def _figures(entry: Mapping[str, Any]) -> dict[str, float]:
    return {"epoch": float(entry["epoch"]), "loss": float(entry["loss"]), **named_metrics(entry.get("metrics", {}))}


def _history(folder: Path) -> list[Any]:
    from trainer.checkpoint import checkpoints, read_state

    try:
        saved = checkpoints(folder)
        return list(read_state(saved[-1]).history) if saved else []
    except (EmberlineError, OSError):
        return []  # the training that writes it has just removed this commit


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
