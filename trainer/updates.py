"""update(): continues a finished run over newer rows and publishes the changes as deltas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from storage.errors import ConfigError, NotFound
from storage.paths import local_path
from trainer.checkpoint import CommitLog, UpdateState, load_checkpoint
from trainer.config import PublishConfig
from trainer.data import BatchMaker, Data, DataRows
from trainer.embedding.memory import MemoryFigures
from trainer.ending import table_reports
from trainer.label_ranges import metric_warnings
from trainer.loop import TrainingLoop
from trainer.models import build_model, build_tables
from trainer.progress import Display
from trainer.publication import delta_policy, publisher_of
from trainer.publishing.target import check_repository
from trainer.ranks import refuse_ranks
from trainer.report import Metrics, TableReport, UpdateReport, first_figure
from trainer.row_memory import row_memory, with_dram_bytes
from trainer.row_sources import evaluation_rows, rows_to_learn, training_rows
from trainer.run import block_index, skipped_of, threads
from trainer.trained import (
    SAMPLE_ROWS,
    read_run,
    read_sample,
    sample_columns,
    save_sample,
    with_newer_rows,
)
from trainer.update_start import UpdateStart


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
    refuse_ranks("an update")
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
        start = UpdateStart(log, log.newest, config, rows.fingerprint, resume=resume, from_snapshot=from_snapshot)
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
    report = update_report(loop, pass_of, output, valid_rows, metrics_after, tables_after, memory_after)
    report = replace(report, skipped=skipped_of(rows, valid_rows))
    report.write(output / "update.json")
    index.remove_copies()
    return report


def update_report(
    loop: TrainingLoop,
    pass_of: UpdateState,
    output: Path,
    valid_rows: DataRows | None,
    metrics_after: Metrics,
    tables: list[TableReport],
    memory: MemoryFigures | None,
) -> UpdateReport:
    """Returns the figures of a pass that is over. tables, memory: as they were at its end."""
    assert loop.checkpoint is not None
    return UpdateReport(
        model_name=loop.config.model_name,
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
        tables=tables,
        memory=memory,
        profile=loop.profile(),
        metrics_before=pass_of.metrics_before,
        metrics_after=metrics_after,
        warnings=[*loop.warnings, *metric_warnings(metrics_after)],
    )
