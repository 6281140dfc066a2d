"""Reports of a run: figures of each epoch and of the whole as OUTPUT/report.json, an update's as update.json."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storage.data import SkippedFile
    from trainer.devices import DeviceReport
    from trainer.embedding import HbmFigures, MemoryFigures
    from trainer.start_report import StartReport
    from trainer.step_profile import ProfileReport


#: Metrics on the validation rows by task and name; None where the rows do not allow one.
Metrics = dict[str, dict[str, float | None]]


# Names of metrics in text, where they are not those of the configuration.
_SHOWN = {name: name.upper() for name in ("auc", "gauc", "mae", "mrr", "ndcg", "rmse")} | {"log_loss": "log-loss"}


@dataclass(frozen=True)
class EpochReport:
    """Figures of one epoch."""

    epoch: int
    #: Mean training loss, in nats where the task is binary; that of all tasks by their weights.
    loss: float
    #: AUC of the first task on the validation rows, None when it was not taken.
    auc: float | None = None
    #: Log-loss on the validation rows in nats, None when it was not taken.
    log_loss: float | None = None
    #: All metrics that the tasks ask for; empty when they were not taken.
    metrics: Metrics = field(default_factory=dict)

    def text(self) -> str:
        """Returns the figures in one line."""
        valid = f"  valid: {metrics_text(self.metrics)}" if self.metrics else ""
        return f"epoch {self.epoch}  loss {self.loss:.5f}{valid}"


@dataclass(frozen=True)
class TableReport:
    """Size of one table."""

    name: str
    dim: int
    #: Ids with a row.
    rows: int
    #: Ids seen, but not often enough yet for a row.
    waiting: int
    memory_bytes: int
    #: Rows that are not in memory.
    rows_on_ssd: int = 0


@dataclass(frozen=True)
class TrainReport:
    """Figures of a finished run.

    rows and seconds count training steps over the whole run, also before a resume; evaluation is not in seconds. With
    early stopping, steps, rows, seconds and metrics are those of the epoch whose model was kept.
    """

    model_name: str
    #: AUC of the first task in the last evaluation, None without validation rows.
    auc: float | None
    #: Log-loss of the last evaluation, None without validation rows.
    log_loss: float | None
    steps: int
    rows: int
    seconds: float
    valid_rows: int
    output: Path
    checkpoint: Path
    published: Path | None = None
    epochs: list[EpochReport] = field(default_factory=list)
    tables: list[TableReport] = field(default_factory=list)
    #: Distribution of the rows over DRAM and SSD, when their DRAM is bounded.
    memory: MemoryFigures | None = None
    #: The GPU that it was trained on; None on a processor.
    device: DeviceReport | None = None
    #: The rows that it kept in its memory, with training.hbm_bytes.
    hbm: HbmFigures | None = None
    #: What the run took over from another one, or from a version, before its first step.
    started: StartReport | None = None
    #: The work of the stages of the steps that this call trained; None when it trained none.
    profile: ProfileReport | None = None
    #: Damaged files that were left out, where `data.on_damaged` is `skip`.
    skipped: list[SkippedFile] = field(default_factory=list)
    #: All metrics of the last evaluation; empty without validation rows.
    metrics: Metrics = field(default_factory=dict)
    #: The epoch whose model was kept, with early stopping.
    best_epoch: int | None = None
    #: What the labels did not allow to learn or to measure, a sentence each.
    warnings: list[str] = field(default_factory=list)

    @property
    def rows_per_second(self) -> float:
        """Training rows a second."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    def to_json_value(self) -> dict[str, Any]:
        """The report as JSON values."""
        content = asdict(self)
        content["rows_per_second"] = self.rows_per_second
        for key in ("output", "checkpoint", "published"):
            content[key] = None if content[key] is None else str(content[key])
        return content

    def write(self, path: Path) -> None:
        """Writes the report as JSON."""
        path.write_text(json.dumps(self.to_json_value(), indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class FollowReport:
    """Says how far the training has followed a stream."""

    #: Its path or URL, without passwords.
    stream: str
    #: What had come and was not read yet, and its unit: files, entries or messages.
    waiting: int
    unit: str
    #: Rows a second since the line before.
    rows_per_second: float
    #: The age of the newest row that was trained on, by `training.time_column`, in seconds; None without one.
    age_seconds: float | None = None
    #: By stage (trained, committed, published): how many events reached it since this call began, and p50 and p99 of
    #: their ages in seconds then; empty without a time column.
    freshness: dict[str, dict[str, float]] = field(default_factory=dict)
    #: Where labels are joined (`data.join`): rows that wait and labels that are held, and since the stream was followed
    #: for the first time the labels in time, rows and labels that came too late, and rows that got a label.
    joined: dict[str, int] = field(default_factory=dict)

    def text(self) -> str:
        """Returns the figures in one line."""
        age = "" if self.age_seconds is None else f", the newest row is {self.age_seconds:,.1f} s old"
        published = self.freshness.get("published")
        after = "" if published is None else ", published after {p50:,.1f} s (p99 {p99:,.1f} s)".format(**published)
        joined = ", {waiting_rows:,} rows wait for labels" if self.joined else ""
        late = ", {rows_late:,} rows and {labels_late:,} labels came too late" if self._late else ""
        text = f"{self.rows_per_second:,.0f} rows/s, {self.waiting:,} {self.unit} waiting{age}{after}"
        return text + (joined + late).format(**self.joined)

    @property
    def _late(self) -> int:
        return sum(self.joined.get(name, 0) for name in ("rows_late", "labels_late"))


@dataclass(frozen=True)
class UpdateReport:
    """Figures of a finished update, one pass over newer rows.

    steps, rows and seconds are those of the whole pass, also before a resume.
    """

    model_name: str
    number: int
    steps: int
    rows: int
    seconds: float
    valid_rows: int
    #: AUC and log-loss on the validation rows before the pass and after it.
    auc_before: float | None
    auc_after: float | None
    log_loss_before: float | None
    log_loss_after: float | None
    output: Path
    checkpoint: Path
    #: Folders of the versions and deltas that this call published, oldest first.
    published: list[Path] = field(default_factory=list)
    tables: list[TableReport] = field(default_factory=list)
    memory: MemoryFigures | None = None
    #: The GPU that it was trained on; None on a processor.
    device: DeviceReport | None = None
    #: The rows that it kept in its memory, with training.hbm_bytes.
    hbm: HbmFigures | None = None
    profile: ProfileReport | None = None
    #: Damaged files that were left out, where `data.on_damaged` is `skip`.
    skipped: list[SkippedFile] = field(default_factory=list)
    #: All metrics on the validation rows, before the pass and after it; empty without such rows.
    metrics_before: Metrics = field(default_factory=dict)
    metrics_after: Metrics = field(default_factory=dict)
    #: What the labels did not allow to learn or to measure, a sentence each.
    warnings: list[str] = field(default_factory=list)
    #: The stream that was followed, as it was at the end; None for a pass over data.
    followed: FollowReport | None = None

    @property
    def rows_per_second(self) -> float:
        """Training rows a second."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    def to_json_value(self) -> dict[str, Any]:
        """The report as JSON values."""
        content = {**asdict(self), "rows_per_second": self.rows_per_second}
        for key in ("output", "checkpoint"):
            content[key] = str(content[key])
        content["published"] = [str(path) for path in self.published]
        return content

    def write(self, path: Path) -> None:
        """Writes the report as JSON."""
        path.write_text(json.dumps(self.to_json_value(), indent=1) + "\n", encoding="utf-8")


def first_figure(metrics: Metrics, name: str) -> float | None:
    """Returns a metric of the first task; None where it was not taken, or the rows did not allow it."""
    return next(iter(metrics.values()), {}).get(name)


def named_metrics(metrics: Metrics) -> dict[str, float]:
    """Returns the metrics that could be taken by one name each: NAME, or TASK/NAME where there are several tasks."""
    return {
        name if len(metrics) == 1 else f"{task}/{name}": value
        for task, values in metrics.items()
        for name, value in values.items()
        if value is not None
    }


def metrics_text(metrics: Metrics) -> str:
    """Returns all metrics in one line; the task is named where there are several."""
    return ", ".join(
        f"{_of_task(task, metrics)}{_shown(name)} {figure_text(value)}"
        for task, values in metrics.items()
        for name, value in values.items()
    )


def change_text(before: Metrics, after: Metrics) -> str:
    """Returns all metrics in one line, as they were and as they are."""
    return ", ".join(
        f"{_of_task(task, after)}{_shown(name)} {figure_text(before.get(task, {}).get(name))} -> {figure_text(value)}"
        for task, values in after.items()
        for name, value in values.items()
    )


def figure_text(value: float | None) -> str:
    """Returns a metric as text; a dash for one that the rows did not allow."""
    return "-" if value is None else f"{value:.4f}"


def _shown(name: str) -> str:
    kind, at, depth = name.partition("@")
    return f"{_SHOWN.get(kind, kind.replace('_', ' '))}{at}{depth}"


def _of_task(task: str, metrics: Metrics) -> str:
    return f"{task} " if len(metrics) > 1 else ""


def finite_or_none(value: float) -> float | None:
    """Returns None for NaN, which JSON has not: an AUC over one class is reported as none."""
    return value if math.isfinite(value) else None
