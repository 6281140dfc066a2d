"""Models that start from others: configurations that differ by a feature, a name or a dim."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer import StartFrom, StartReport, Trained
from trainer.config import TrainConfig
from trainer.config_errors import parse_config
from trainer.models import build_model, build_tables
from trainer.optimizers import dense_optimizer, sparse_optimizer
from trainer.warm_start import start_config

Change = Callable[[dict[str, Any]], None]


class Started(Trained):
    """A model that was started and has taken no step."""

    report: StartReport
    dense: torch.optim.Optimizer


def changed(config: TrainConfig, *changes: Change) -> TrainConfig:
    content = config.model_dump(mode="json")
    for change in changes:
        change(content)
    return parse_config(TrainConfig, content)


def started(config: TrainConfig, source: Path | str, *, seed: int = 77, **options: Any) -> Started:
    """Starts a model; its own weights are drawn from another seed than those of the source were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tables = build_tables(config)
        model = build_model(config, tables)
    dense = dense_optimizer(config.optimizer.dense, model)
    sparse = sparse_optimizer(config.optimizer.sparse, tables)
    report = start_config(config, StartFrom(source, **options), model, tables, dense, sparse)
    model.eval()
    found = Started(config, model, tables, {})
    found.report, found.dense = report, dense
    return found


def weights_of(trained: Trained) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in trained.model.state_dict().items()}


def fates(report: StartReport) -> dict[str, str]:
    """Returns what became of every table and weight, by name."""
    tables = {entry.name: str(entry.change) for entry in report.tables}
    return tables | {entry.name: str(entry.change) for entry in report.weights}


def optimizers(report: StartReport) -> set[bool]:
    """Returns whether optimizer values were taken, of any table or weight."""
    return {entry.optimizer for entry in report.tables} | {entry.optimizer for entry in report.weights}


def with_colors(content: dict[str, Any]) -> None:
    """Adds, before all others, a feature with a table whose rows begin as zeros, and a dense feature that is 0."""
    content["inputs"].append({"name": "unused", "dtype": "FP64"})
    content["features"].insert(0, {"name": "zero", "inputs": ["unused"], "output": "dense"})
    content["features"].insert(0, {"name": "color", "inputs": ["user"], "output": "ids", "table": "colors"})
    dim = content["tables"][0]["dim"]
    content["tables"].insert(0, {"name": "colors", "dim": dim, "init": {"type": "zeros"}})


def without(feature: str, table: str = "") -> Change:
    def change(content: dict[str, Any]) -> None:
        content["features"] = [entry for entry in content["features"] if entry["name"] != feature]
        content["tables"] = [entry for entry in content["tables"] if entry["name"] != table]

    return change


def reordered(content: dict[str, Any]) -> None:
    content["features"].reverse()
    content["tables"].reverse()


def of_dim(dim: int, init: str = "zeros") -> Change:
    def change(content: dict[str, Any]) -> None:
        for table in content["tables"]:
            table["dim"] = dim
            table["init"] = {"type": init, "scale": 0.0 if init == "zeros" else 0.3}

    return change


def renamed(content: dict[str, Any]) -> None:
    """Calls the feature and the table `tags` both `labels`, and the table `items` `goods`."""
    for feature in content["features"]:
        feature["name"] = "labels" if feature["name"] == "tags" else feature["name"]
        feature["table"] = {"tags": "labels", "items": "goods"}.get(feature["table"], feature["table"])
    for table in content["tables"]:
        table["name"] = {"tags": "labels", "items": "goods"}.get(table["name"], table["name"])


def with_sparse(**options: Any) -> Change:
    def change(content: dict[str, Any]) -> None:
        content["optimizer"]["sparse"] = options

    return change
