"""Reports of a run: figures of each epoch and of the whole as OUTPUT/report.json, an update's as update.json."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storage.data import SkippedFile
    from trainer.embedding import MemoryFigures
    from trainer.start_report import StartReport
    from trainer.step_profile import ProfileReport


@dataclass(frozen=True)
class EpochReport:
    """Figures of one epoch."""

    epoch: int
    #: Mean training loss in nats.
    loss: float
    #: AUC on the validation rows, None when it was not taken.
    auc: float | None = None
    #: Log-loss on the validation rows in nats, None when it was not taken.
    log_loss: float | None = None


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

    rows and seconds count training steps over the whole run, also before a resume; evaluation is not in seconds.
    """

    model_name: str
    #: AUC of the last evaluation, None without validation rows.
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
    #: What the run took over from another one, or from a version, before its first step.
    started: StartReport | None = None
    #: The work of the stages of the steps that this call trained; None when it trained none.
    profile: ProfileReport | None = None
    #: Damaged files that were left out, where `data.on_damaged` is `skip`.
    skipped: list[SkippedFile] = field(default_factory=list)

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
    profile: ProfileReport | None = None
    #: Damaged files that were left out, where `data.on_damaged` is `skip`.
    skipped: list[SkippedFile] = field(default_factory=list)

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


def finite_or_none(value: float) -> float | None:
    """Returns None for NaN, which JSON has not: an AUC over one class is reported as none."""
    return value if math.isfinite(value) else None
