"""update(): continues a finished run over newer rows and publishes the changes as deltas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from storage.errors import ConfigError
from trainer.config import PublishConfig
from trainer.data import BatchMaker, Data
from trainer.ranks import join_ranks
from trainer.report import UpdateReport
from trainer.row_sources import rows_to_learn, training_rows
from trainer.run import skipped_of
from trainer.trained import SAMPLE_ROWS, sample_columns
from trainer.update_run import UpdateRun


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
    device: str | None = None,
) -> UpdateReport:
    """Trains one pass over newer rows, from the newest commit of a run, and publishes deltas of what changed.

    output: the folder that `train` wrote. data: files, folders, URLs or patterns of them, in the order of their names
    and rows, or a table in memory. repository: where the run was published; an unpublished run begins with a version.
    Deltas follow the policy of the configuration, or of `publish`, and one comes at the end. valid: files to evaluate
    on, before and after. resume: continues the update that a crash or Ctrl-C cut short; without one it begins one, so
    that the same call can be repeated until it returns. A snapshot that the crash left half published is published
    first. from_snapshot: id or VERSION.SEQUENCE; training goes back to the commit that it was made from, and the next
    delta continues it. What came after that snapshot is no part of the model any more. dram_bytes: DRAM of the tables,
    instead of training.dram_bytes in the configuration; rows beyond it lie on SSD. device: instead of training.device,
    that of the training by default. Raises NotFound for a run or snapshot that is not there, ConfigError for an update
    that cannot begin, InvalidInput.
    """
    with join_ranks() as ranks:
        run = UpdateRun(
            output,
            repository,
            ranks,
            valid=valid,
            publish=publish,
            dram_bytes=dram_bytes,
            device=device,
            track=None,
            progress=progress,
        )
        return _update(run, data, resume=resume, from_snapshot=from_snapshot)


def _update(run: UpdateRun, data: Data, *, resume: bool, from_snapshot: str | None) -> UpdateReport:
    config, ranks = run.config, run.ranks
    with ranks.first_before_others():
        rows = rows_to_learn(config, training_rows(config, data, run.index))
    if rows.rows == 0:
        raise ConfigError("data: there are no rows; give more data", field="data")
    with run.opened(rows, resume=resume, from_snapshot=from_snapshot) as opened:
        loop = opened.loop
        pass_of = opened.begin()
        loop.run_update(pass_of)
        if not pass_of.done or loop.published:
            opened.renew_sample(sample_columns(rows, BatchMaker(config.spec, config.targets), SAMPLE_ROWS // 2))
        opened.end()
    report = replace(opened.report(pass_of), skipped=skipped_of(rows, run.valid))
    if pass_of.done and not loop.published:
        report.warnings.append(
            f"update {pass_of.number} was complete already, so no row was trained on; leave resume (--resume) out to "
            "train on the same rows once more"
        )
    if ranks.is_first:
        report.write(run.output / "update.json")
        run.index.remove_copies()
    return report
