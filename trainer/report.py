"""What a run reports: figures of each epoch and of the whole as OUTPUT/report.json, an update's as update.json."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.embedding import MemoryFigures


@dataclass(frozen=True)
class EpochReport:
    """loss: mean training loss in nats. auc, log_loss: on the validation rows, None where they were not taken."""

    epoch: int
    loss: float
    auc: float | None = None
    log_loss: float | None = None


@dataclass(frozen=True)
class TableReport:
    """rows: ids with a row, rows_on_ssd of them not in memory. waiting: ids seen, but not often enough yet."""

    name: str
    dim: int
    rows: int
    waiting: int
    memory_bytes: int
    rows_on_ssd: int = 0


@dataclass(frozen=True)
class TrainReport:
    """A finished run. auc and log_loss are those of the last evaluation, None without validation rows.

    rows and seconds count training steps over the whole run, also before a resume; evaluation is not in seconds.
    memory: where the rows are, when their DRAM is bounded.
    """

    model_name: str
    auc: float | None
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
    memory: MemoryFigures | None = None

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
    """A finished update: one pass over newer rows. auc and log_loss: on the validation rows before it and after it.

    steps, rows and seconds are those of the whole pass, also before a resume. published: folders of the versions and
    deltas that this call published, oldest first.
    """

    model_name: str
    number: int
    steps: int
    rows: int
    seconds: float
    valid_rows: int
    auc_before: float | None
    auc_after: float | None
    log_loss_before: float | None
    log_loss_after: float | None
    output: Path
    checkpoint: Path
    published: list[Path] = field(default_factory=list)
    tables: list[TableReport] = field(default_factory=list)
    memory: MemoryFigures | None = None

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
    """JSON has no NaN: an AUC over one class is reported as none."""
    return value if math.isfinite(value) else None
