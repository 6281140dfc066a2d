"""update(): continues a finished run over newer rows and publishes the changes as deltas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from storage.errors import ConfigError, NotFound
from storage.paths import local_path
from trainer.checkpoint import Commit, CommitLog, UpdateState, load_checkpoint
from trainer.config import PublishConfig, TrainConfig
from trainer.data import BatchMaker, Data, DataRows
from trainer.ending import table_reports
from trainer.label_ranges import metric_warnings
from trainer.loop import TrainingLoop
from trainer.models import build_model, build_tables
from trainer.progress import Display
from trainer.publication import delta_policy, lineage_of, publisher_of
from trainer.publishing import Lineage
from trainer.publishing.target import check_repository
from trainer.report import UpdateReport, first_figure
from trainer.row_memory import row_memory, with_dram_bytes
from trainer.row_sources import evaluation_rows, rows_to_learn, training_rows
from trainer.run import block_index, skipped_of, threads
from trainer.settings import check_same_training
from trainer.trained import (
    SAMPLE_ROWS,
    read_run,
    read_sample,
    sample_columns,
    save_sample,
    with_newer_rows,
)


def update(
    output: Path | str,
    data: Data,
    *,
    repository: Path | str,
    valid: Data | None = None,
    publish: PublishConfig | None = None,
    progress: bool = True,
    resume: bool = False,
    from_snapshot: str | None = None,
    dram_bytes: int | None = None,
) -> UpdateReport:
    """Trains one pass over newer rows, from the newest commit of a run, and publishes deltas of what changed.

    output: the folder that `train` wrote. data: files, folders, URLs or patterns of them, in the order of their names
    and rows, or a table in memory. repository: where the run was published; an unpublished run begins with a version.
    Deltas follow the policy of the configuration, or of `publish`, and one comes at the end. valid: files to evaluate
    on, before and after. resume: continues the update that a crash or Ctrl-C cut short; without one it begins one, so
    that the same call can be repeated until it returns. A snapshot that the crash left half published is published
    first. from_snapshot: id or VERSION.SEQUENCE; training goes back to the commit that it was made from, and the next
    delta continues it. What came after that snapshot is no part of the model any more. dram_bytes: DRAM of the tables,
    instead of training.dram_bytes in the configuration; rows beyond it lie on SSD. Raises NotFound for a run or
    snapshot that is not there, ConfigError for an update that cannot begin, InvalidInput.
    """
    output = local_path(output, "output")
    repository = check_repository(repository)
    config = with_dram_bytes(read_run(output)[0], dram_bytes)
    if publish is not None:
        config = config.model_copy(update={"publish": publish})
    index = block_index(output)
    rows = rows_to_learn(config, training_rows(config, data, index))
    valid_rows = None if valid is None else evaluation_rows(config, valid, index)
    for what, given in (("data", rows), ("valid", valid_rows)):
        if given is not None and given.rows == 0:
            raise ConfigError(f"{what}: there are no rows; give more data", field=what)
    # The caller's random numbers are not ours to change.
    with (
        CommitLog(output, keep_snapshots=config.publish.keep_states) as log,
        torch.random.fork_rng(devices=[]),
        threads(config.training.threads),
        Display(visible=progress) as display,
        row_memory(config, output) as memory,
    ):
        if log.newest is None:
            raise NotFound(f"{output}: holds no checkpoint; train first")
        start = _Start(log, log.newest, config, rows, resume=resume, from_snapshot=from_snapshot)
        tables = build_tables(config, memory)
        model = build_model(config, tables)
        loop = TrainingLoop(config, model, tables, rows, valid_rows, log, display, memory)
        loop.restore(load_checkpoint(start.commit.folder, model, tables, loop.dense_optimizer))
        log.go_on_from(start.commit)
        sample = read_sample(output, config)
        policy = delta_policy(config)
        loop.publish_with(publisher_of(config, model, sample, repository, policy, start.lineage), policy)
        pass_of = start.update
        if pass_of is None:
            pass_of = start.begun(loop)
        loop.run_update(pass_of)
        if not pass_of.done or loop.published:
            # The sample is renewed only now, with rows that could be trained on and so can be scored. Ids expire, so an
            # old sample would reach too few.
            newer = sample_columns(rows, BatchMaker(config.spec, config.targets), SAMPLE_ROWS // 2)
            save_sample(output, with_newer_rows(sample, newer, config.spec))
        after = loop.evaluate()
        metrics_after = {} if after is None else after.metrics
        loop.settle()
        tables_after, memory_after = table_reports(loop), None if memory is None else memory.figures()
    assert loop.checkpoint is not None
    report = UpdateReport(
        model_name=config.model_name,
        number=pass_of.number,
        steps=loop.position.step - pass_of.start_step,
        rows=loop.position.rows - pass_of.start_rows,
        seconds=loop.position.seconds - pass_of.start_seconds,
        valid_rows=0 if valid_rows is None else valid_rows.rows,
        auc_before=pass_of.auc_before,
        auc_after=first_figure(metrics_after, "auc"),
        log_loss_before=pass_of.log_loss_before,
        log_loss_after=first_figure(metrics_after, "log_loss"),
        output=output,
        checkpoint=loop.checkpoint,
        published=loop.published,
        tables=tables_after,
        memory=memory_after,
        profile=loop.profile(),
        skipped=skipped_of(rows, valid_rows),
        metrics_before=pass_of.metrics_before,
        metrics_after=metrics_after,
        warnings=[*loop.warnings, *metric_warnings(metrics_after)],
    )
    report.write(output / "update.json")
    index.remove_copies()
    return report


class _Start:
    """Finds the state where an update begins or continues."""

    def __init__(
        self,
        log: CommitLog,
        newest: Commit,
        config: TrainConfig,
        rows: DataRows,
        *,
        resume: bool,
        from_snapshot: str | None,
    ) -> None:
        #: The commit with that state.
        self.commit = newest
        #: The snapshots published before it.
        self.lineage = lineage_of(newest.state)
        #: The pass that is continued; None for a new one.
        self.update = newest.state.update
        self._number = 1 if self.update is None else self.update.number + 1
        self._origin = "" if from_snapshot is None else _snapshot_id(self.lineage, from_snapshot)
        is_trained = newest.state.stopped or newest.state.position.epoch >= config.training.epochs
        if self.update is None and not is_trained:
            raise ConfigError(
                f"{newest.folder}: the training is at epoch {newest.state.position.epoch + 1} of "
                f"{config.training.epochs}; finish it first (emberline train --resume)",
                field="output",
            )
        if resume and self.update is not None and self._is_same_pass(newest, rows, from_snapshot):
            check_same_training(newest.state.settings, config, newest.folder)
            return
        if self.update is not None and not self.update.done and from_snapshot is None:
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

    def _is_same_pass(self, newest: Commit, rows: DataRows, from_snapshot: str | None) -> bool:
        assert self.update is not None
        same = newest.state.data_fingerprint == rows.fingerprint
        return same and (from_snapshot is None or self._origin == self.update.origin)

    def begun(self, loop: TrainingLoop) -> UpdateState:
        """The new pass, at its first row."""
        before = loop.evaluate()
        metrics = {} if before is None else before.metrics
        position = loop.position = replace(loop.position, batch=0, loss_sum=0.0, labels=None)
        return UpdateState(
            number=self._number,
            origin=self._origin,
            rebase=self._origin,
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
