"""The content of a training checkpoint beside weights and rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from storage.features.dtypes import ColumnType


@dataclass(frozen=True)
class Position:
    """Progress of training."""

    epoch: int = 0
    #: Batches of `epoch`, or of the update, that are done.
    batch: int = 0
    step: int = 0
    rows: int = 0
    #: Loss summed over the rows of those batches.
    loss_sum: float = 0.0
    seconds: float = 0.0
    #: Step at the last publish.
    published_step: int = 0
    #: Rows at the last publish.
    published_rows: int = 0
    #: The smallest and the largest label of each task in the training, or in the update; None before its first step.
    labels: dict[str, list[float]] | None = None


@dataclass(frozen=True)
class UpdateState:
    """One pass over newer rows."""

    #: Counts from 1, the first update of a run.
    number: int
    #: The snapshot that training went back to; "" for none.
    origin: str = ""
    #: As `origin`, until the first publish after it.
    rebase: str = ""
    #: True when all rows were seen.
    done: bool = False
    #: The name of the stream that is followed, which has no end; "" for a pass over data.
    follows: str = ""
    #: Steps of the run when the pass began.
    start_step: int = 0
    #: Rows of the run when the pass began.
    start_rows: int = 0
    #: Training seconds of the run when the pass began.
    start_seconds: float = 0.0
    #: AUC on the validation rows before the pass.
    auc_before: float | None = None
    #: Log-loss on the validation rows before the pass.
    log_loss_before: float | None = None
    #: All metrics on the validation rows before the pass, by task and name.
    metrics_before: dict[str, dict[str, float | None]] = field(default_factory=dict)

    @property
    def is_under_way(self) -> bool:
        """True when rows are left that this pass has to see before another one may begin."""
        return not self.done and not self.follows


@dataclass(frozen=True)
class TrainingState:
    """State of a run that is saved beside the weights."""

    position: Position
    #: The configuration of the run (trainer.settings).
    settings: dict[str, str]
    #: Types of the training columns, by input.
    column_types: dict[str, ColumnType]
    #: Fingerprint of the rows that are trained on; those of the update when there is one.
    data_fingerprint: str
    #: Figures of the epochs so far.
    history: list[dict[str, Any]]
    update: UpdateState | None = None
    #: The publisher's lineage as JSON values.
    publishing: dict[str, Any] | None = None
    #: Ids of the snapshots that were made from this very state.
    snapshots: tuple[str, ...] = ()
    #: The best epoch so far by early stopping, whose commit stays; 0 without.
    best_epoch: int = 0
    #: True when early stopping ended the training and this is the state of its best epoch.
    stopped: bool = False
    #: The position behind the last row that was trained on, of each stream that was followed, by its name.
    streams: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: The times of the rows since the last snapshot and since the last version (trainer.event_times).
    events: dict[str, Any] = field(default_factory=dict)
    #: The state of `publish.delta_on_drift` (trainer.publishing.drift).
    drift: dict[str, Any] = field(default_factory=dict)
    #: The scale of the loss (trainer.loss_scale); empty unless the precision is fp16.
    loss_scale: dict[str, float] = field(default_factory=dict)

    def published(
        self, publishing: dict[str, Any], snapshots: tuple[str, ...] = (), events: dict[str, Any] | None = None
    ) -> TrainingState:
        """Returns the same training state after `snapshots` were published from it; none: only what was pending is
        written. events: what they leave of the times of rows.
        """
        position, update = self.position, self.update
        events = self.events if events is None else events
        if snapshots:
            position = replace(position, published_step=position.step, published_rows=position.rows)
            update = update and replace(update, rebase="")
        return replace(
            self, position=position, update=update, publishing=publishing, snapshots=snapshots, events=events
        )

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
