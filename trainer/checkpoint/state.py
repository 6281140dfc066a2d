"""What a training checkpoint says beside weights and rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from storage.features.dtypes import ColumnType


@dataclass(frozen=True)
class Position:
    """How far training is. batch: batches of `epoch`, or of the update, that are done. loss_sum: over their rows.

    published_step, published_rows: step and rows at the last publish.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    rows: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    published_step: int = 0
    published_rows: int = 0


@dataclass(frozen=True)
class UpdateState:
    """One pass over newer rows. number: 1 for the first of a run. origin: the snapshot it went back to, "" for none.

    rebase: the same, until the first publish after it. done: all rows were seen. start_*: where the pass began.
    auc_before, log_loss_before: on the validation rows before it.
    """

    number: int
    origin: str = ""
    rebase: str = ""
    done: bool = False
    start_step: int = 0
    start_rows: int = 0
    start_seconds: float = 0.0
    auc_before: float | None = None
    log_loss_before: float | None = None


@dataclass(frozen=True)
class TrainingState:
    """What was saved beside the weights.

    settings: the configuration that it was trained with (trainer.settings). column_types: what the training columns
    hold, by input. data_fingerprint: of the rows that are trained on, those of the update when there is one. history:
    the figures of the epochs so far. publishing: the publisher's line of snapshots as JSON values. snapshots: ids of
    those that were made from this very state.
    """

    position: Position
    settings: dict[str, str]
    column_types: dict[str, ColumnType]
    data_fingerprint: str
    history: list[dict[str, Any]]
    update: UpdateState | None = None
    publishing: dict[str, Any] | None = None
    snapshots: tuple[str, ...] = ()

    def published(self, publishing: dict[str, Any], snapshots: tuple[str, ...] = ()) -> TrainingState:
        """The same state of training, of which `snapshots` are published; none: what was pending is written."""
        position, update = self.position, self.update
        if snapshots:
            position = replace(position, published_step=position.step, published_rows=position.rows)
            update = update and replace(update, rebase="")
        return replace(self, position=position, update=update, publishing=publishing, snapshots=snapshots)

    def to_json_value(self) -> dict[str, Any]:
        """The state as JSON values."""
        return asdict(self)

    @classmethod
    def from_json_value(cls, value: dict[str, Any]) -> TrainingState:
        """Reads what to_json_value gave. Raises KeyError or TypeError for anything else."""
        content = {**value, "position": Position(**value["position"]), "snapshots": tuple(value["snapshots"])}
        if content["update"] is not None:
            content["update"] = UpdateState(**content["update"])
        return cls(**content)
