"""The figures of a run, by step and epoch, as a tracker gets them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from trainer.config import TrainConfig
from trainer.config_paths import shown_leaves
from trainer.embedding import EmbeddingTable
from trainer.rank_times import RankReport
from trainer.report import EpochReport, FollowReport, named_metrics
from trainer.step_profile import StepProfile
from trainer.tracking.base import Tracker
from trainer.tracking.mlflow import MlflowTracker
from trainer.tracking.tensorboard import TensorBoardTracker
from trainer.tracking_config import MlflowConfig, TensorBoardConfig


class Track:
    """Hands the figures of training to a tracker; without one it does nothing."""

    def __init__(self, tracker: Tracker | None = None, every_steps: int = 1) -> None:
        self._tracker = tracker
        self._every_steps = every_steps
        self._since = time.monotonic()
        self._rows = 0
        self._stages: dict[str, float] = {}

    def step(self, step: int, rows: int, loss: float, rates: Mapping[str, torch.optim.Optimizer]) -> None:
        """Takes a step: its number from 1 on, its rows, the loss of its batch, the optimizers with their rates."""
        if self._tracker is None:
            return
        self._rows += rows
        if step % self._every_steps:
            return
        now = time.monotonic()
        values = {"train/loss": loss, "train/rows_per_second": self._rows / max(now - self._since, 1e-9)}
        values |= {f"train/lr_{name}": float(each.param_groups[0]["lr"]) for name, each in rates.items()}
        self._since, self._rows = now, 0
        self._tracker.log(step, values)

    def epoch(
        self,
        step: int,
        figures: EpochReport,
        profile: StepProfile,
        tables: Mapping[str, EmbeddingTable],
        ranks: Sequence[RankReport] = (),
    ) -> None:
        """Takes the figures of an epoch that ended with `step`. ranks: its steps by rank, where there are several."""
        if self._tracker is None:
            return
        values = {"epoch": float(figures.epoch), "epoch/loss": figures.loss}
        values |= {f"valid/{name}": value for name, value in named_metrics(figures.metrics).items()}
        report = profile.report()
        for stage in () if report is None else report.stages:
            values[f"seconds/{stage.name}"] = stage.seconds - self._stages.get(stage.name, 0.0)
            self._stages[stage.name] = stage.seconds
        for each in ranks:
            values[f"ranks/{each.rank}/work_seconds"] = each.work_seconds
            values[f"ranks/{each.rank}/waited_seconds"] = each.waited_seconds
            for kind, count in each.sent.items():
                values[f"ranks/{each.rank}/sent_bytes/{kind}"] = float(count)
            for kind, count in each.received.items():
                values[f"ranks/{each.rank}/received_bytes/{kind}"] = float(count)
        for name, table in tables.items():
            values[f"tables/{name}/rows"] = float(table.size())
            values[f"tables/{name}/waiting"] = float(table.waiting())
            values[f"tables/{name}/memory_bytes"] = float(table.memory_bytes())
            values[f"tables/{name}/rows_on_ssd"] = float(table.rows_on_ssd())
        self._tracker.log(step, {name: value for name, value in values.items() if math.isfinite(value)})
        self._since, self._rows = time.monotonic(), 0

    def follow(self, step: int, report: FollowReport) -> None:
        """Takes how far a stream has been followed, behind a step."""
        if self._tracker is None:
            return
        values = {"follow/rows_per_second": report.rows_per_second, "follow/waiting": float(report.waiting)}
        if report.age_seconds is not None:
            values["follow/age_seconds"] = report.age_seconds
        for stage, found in report.freshness.items():
            values |= {f"follow/{stage}_seconds_{name}": found[name] for name in ("p50", "p99")}
        self._tracker.log(step, values)

    def flush(self) -> None:
        """Is called before each commit, so that a resumed run lacks no figure of the steps before it."""
        if self._tracker is not None:
            self._tracker.flush()


@contextmanager
def tracked(config: TrainConfig, output: Path, step: int, asked: Mapping[str, object]) -> Iterator[Track]:
    """Opens the track of a training that has made `step` steps, and ends it as the block ends.

    asked: what the run was started with, beside the configuration; parameters called `run.NAME`.
    """
    tracking = config.tracking
    if tracking is None:
        yield Track()
        return
    output.mkdir(parents=True, exist_ok=True)
    tracker: Tracker
    if isinstance(tracking, TensorBoardConfig):
        folder = output / "tensorboard" if tracking.folder is None else Path(tracking.folder)
        tracker = TensorBoardTracker(folder, step)
    else:
        assert isinstance(tracking, MlflowConfig)
        tracker = MlflowTracker(tracking, output, output / "mlflow.json", output.name, config.model_name, step)
    given = {f"run.{name}": _text(value) for name, value in asked.items() if value is not None}
    tracker.parameters({**shown_leaves(config), **given})
    ended = "failed"
    try:
        yield Track(tracker, tracking.every_steps)
        ended = "finished"
    except KeyboardInterrupt:
        ended = "killed"
        raise
    finally:
        tracker.close(ended)


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
