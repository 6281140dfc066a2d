"""Finds where an update begins: at the newest commit, where it was stopped, or at the commit of a snapshot."""

from __future__ import annotations

from dataclasses import replace

from storage.errors import ConfigError, NotFound
from trainer.checkpoint import Commit, CommitLog, UpdateState
from trainer.config import TrainConfig
from trainer.loop import TrainingLoop
from trainer.publication import lineage_of
from trainer.publishing import Lineage
from trainer.report import first_figure
from trainer.settings import check_same_training, settings_of


class UpdateStart:
    """Finds the state where an update begins or continues.

    fingerprint: that of the rows. begun: the number of the update that began last (trainer.checkpoint.begun). follows:
    the name of the stream that is followed; its pass continues by itself.
    """

    def __init__(
        self,
        log: CommitLog,
        newest: Commit,
        config: TrainConfig,
        fingerprint: str,
        *,
        resume: bool,
        from_snapshot: str | None,
        begun: int,
        follows: str = "",
    ) -> None:
        #: The commit with that state.
        self.commit = newest
        #: The snapshots published before it.
        self.lineage = lineage_of(newest.state)
        #: The pass that is continued; None for a new one.
        self.update = newest.state.update
        self._follows = follows
        #: The number of the pass, if it is a new one.
        self.number = 1 if self.update is None else self.update.number + 1
        self._begun = begun
        self._origin = "" if from_snapshot is None else _snapshot_id(self.lineage, from_snapshot)
        is_trained = newest.state.stopped or newest.state.position.epoch >= config.training.epochs
        if self.update is None and not is_trained:
            raise ConfigError(
                f"{newest.folder}: the training is at epoch {newest.state.position.epoch + 1} of "
                f"{config.training.epochs}; finish it first (emberline train --resume)",
                field="output",
            )
        is_same = self.update is not None and self._is_same_pass(newest, fingerprint, from_snapshot)
        if is_same and follows and (resume or from_snapshot is None):
            # A stream may be cut anywhere, so changed settings begin a pass of their own behind the same row.
            if newest.state.settings == settings_of(config):
                self.update = replace(self.update, done=False)  # type: ignore[type-var]
            else:
                self.update = None
            return
        if is_same and resume:
            check_same_training(newest.state.settings, config, newest.folder)
            return
        if self.update is not None and self.update.is_under_way and from_snapshot is None:
            raise ConfigError(
                f"{newest.folder}: an update is under way, {newest.state.position.batch} batches are done; go on with "
                "it (resume, --resume, and the same data), or go back to a snapshot (from_snapshot, --at)",
                field="resume" if not resume else "data",
            )
        self.update = None
        if not self._origin:
            return
        assert self.lineage is not None
        pending = self.lineage.pending
        self.commit = log.find(self._origin)
        if pending is not None and self._origin in (pending.snapshot, pending.compaction):
            return  # the pending snapshot is written first, and is then the newest
        self.lineage = replace(self.lineage, pending=None).up_to(self._origin)

    def _is_same_pass(self, newest: Commit, fingerprint: str, from_snapshot: str | None) -> bool:
        assert self.update is not None
        if self._begun > self.update.number and not (self.update.is_under_way and from_snapshot is None):
            return False  # a later pass began, and was killed before its first commit
        same = newest.state.data_fingerprint == fingerprint and self.update.follows == self._follows
        return same and (from_snapshot is None or self._origin == self.update.origin)

    def begun(self, loop: TrainingLoop) -> UpdateState:
        """The new pass, at its first row."""
        before = loop.evaluate()
        metrics = {} if before is None else before.metrics
        position = loop.position = replace(loop.position, batch=0, loss_sum=0.0, labels=None)
        return UpdateState(
            number=self.number,
            origin=self._origin,
            rebase=self._origin,
            follows=self._follows,
            start_step=position.step,
            start_rows=position.rows,
            start_seconds=position.seconds,
            auc_before=first_figure(metrics, "auc"),
            log_loss_before=first_figure(metrics, "log_loss"),
            metrics_before=metrics,
        )


def _snapshot_id(lineage: Lineage | None, text: str) -> str:
    if lineage is None:
        raise NotFound(f"snapshot {text!r}: this run has published nothing yet")
    pending = lineage.pending
    if pending is not None:
        if text in (pending.snapshot, f"{pending.version}.{pending.sequence}"):
            return pending.snapshot
        if pending.compaction and text == pending.compaction:
            return pending.compaction
    return lineage.find(text).snapshot
