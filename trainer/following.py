"""follow(): continues a finished run over a stream of rows as they come, and publishes the changes as deltas."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import torch

from storage.data.streams import Credentials, Start, open_stream
from storage.errors import ConfigError, NotFound
from storage.paths import local_path
from trainer.checkpoint import CommitLog, load_checkpoint
from trainer.config import PublishConfig, with_tracking
from trainer.data import BlockIndex, Data, DataRows
from trainer.ending import table_reports
from trainer.follow_flow import FollowFlow
from trainer.follow_pass import FollowPass
from trainer.loop import TrainingLoop
from trainer.models import build_model, build_tables
from trainer.progress import Display
from trainer.publication import delta_policy, publisher_of
from trainer.publishing.target import check_repository
from trainer.ranks import refuse_ranks
from trainer.report import UpdateReport
from trainer.row_memory import row_memory, with_dram_bytes
from trainer.row_sources import evaluation_rows, learned_columns
from trainer.run import block_index, skipped_of, threads
from trainer.tracking import tracked
from trainer.trained import SAMPLE_ROWS, read_run, read_sample, save_sample, with_newer_rows
from trainer.update_start import UpdateStart
from trainer.updates import update_report


def follow(
    output: Path | str,
    source: Path | str,
    *,
    repository: Path | str,
    valid: Data | None = None,
    publish: PublishConfig | None = None,
    until_idle: float | None = None,
    start: Start = "earliest",
    skip_lost: bool = False,
    credentials: Credentials = Credentials(),  # noqa: B008
    progress: bool = True,
    resume: bool = False,
    from_snapshot: str | None = None,
    dram_bytes: int | None = None,
    track: str | None = None,
) -> UpdateReport:
    """Trains on the rows of a stream as they come, from the newest commit of a run, and publishes deltas on the way.

    output: the folder that `train` wrote. source: a folder whose files are read in the order of their names, and which
    is watched for new ones, or the URL of a stream (docs/streams.md). repository, valid, dram_bytes, track: as for
    `update` and `train`. Deltas follow the policy of the configuration, or of `publish`; one comes at the end. The end
    is Ctrl-C, SIGTERM, or `until_idle` seconds without a new row, after which the rows that make no whole batch are
    trained on too. Every commit has the position in the stream, and the same call continues behind it, also after a
    crash. start: where a stream begins that this run has no position of. skip_lost: goes on without rows that are gone
    before they were read. credentials: user and password of the stream, where its URL has none. from_snapshot: id or
    VERSION.SEQUENCE; training goes back to its commit and position; with resume, only if it has not done so already.
    Raises NotFound for a run or snapshot that is not there, ConfigError, InvalidInput.
    """
    refuse_ranks("following a stream")
    output = local_path(output, "output")
    repository = check_repository(repository)
    config = with_tracking(with_dram_bytes(read_run(output)[0], dram_bytes), track)
    if publish is not None:
        config = config.model_copy(update={"publish": publish})
    policy = delta_policy(config)
    if until_idle is not None and not (math.isfinite(until_idle) and until_idle >= 0.0):
        raise ConfigError(f"until_idle is {until_idle}, expected seconds, 0 or more", field="until_idle")
    if until_idle is None and not policy.publishes_deltas:
        raise ConfigError(
            "publish: a stream does not end, and no limit says when a delta is due; set publish.delta_every_seconds, "
            "delta_every_rows or delta_every_steps (--every-seconds, --every-rows, --every-steps)",
            field="publish.delta_every_seconds",
        )
    index = block_index(output)
    unpacked = BlockIndex(output / "stream-index")
    stream = open_stream(source, learned_columns(config), config.data, unpacked, credentials)
    valid_rows = None if valid is None else evaluation_rows(config, valid, index)
    if valid_rows is not None and valid_rows.rows == 0:
        raise ConfigError("valid: there are no rows; give more data", field="valid")
    # It has the place of the rows that a pass over data has.
    rows = DataRows((), pa.schema([]), hashlib.sha256(f"stream {stream.name}".encode()).hexdigest())
    with (
        CommitLog(output, keep_snapshots=config.publish.keep_states) as log,
        torch.random.fork_rng(devices=[]),
        threads(config.training.threads),
        Display(visible=progress) as display,
        row_memory(config, output) as memory,
    ):
        if log.newest is None:
            raise NotFound(f"{output}: holds no checkpoint; train first")
        begin = UpdateStart(
            log,
            log.newest,
            config,
            rows.fingerprint,
            resume=resume,
            from_snapshot=from_snapshot,
            follows=stream.name,
        )
        tables = build_tables(config, memory)
        model = build_model(config, tables)
        loop = TrainingLoop(config, model, tables, rows, valid_rows, log, display, memory)
        loop.restore(load_checkpoint(begin.commit.folder, model, tables, loop.dense_optimizer))
        known = loop.streams.get(stream.name)
        at = stream.seek(None if known is None else known["at"], start, skip_lost=skip_lost)
        position = {"at": at, "rows": 0 if known is None else known["rows"]}
        loop.streams = {**loop.streams, stream.name: position}
        log.go_on_from(begin.commit)
        sample = read_sample(output, config)
        loop.publish_with(publisher_of(config, model, sample, repository, policy, begin.lineage), policy)
        flow = FollowFlow(config, stream, loop.stages, position)
        following = FollowPass(loop, flow, stream, display, until_idle)
        update = begin.update or begin.begun(loop)
        try:
            with tracked(config, output, loop.position.step, {"follow": stream.name}) as loop.track:
                following.run(update)
            followed = following.report()
        finally:
            stream.close()
        newer = flow.recent(SAMPLE_ROWS // 2)
        if newer is not None:
            save_sample(output, with_newer_rows(sample, newer, config.spec))
        after = loop.evaluate()
        metrics_after = {} if after is None else after.metrics
        loop.settle()
        tables_after, memory_after = table_reports(loop), None if memory is None else memory.figures()
    report = update_report(loop, update, output, valid_rows, metrics_after, tables_after, memory_after)
    report = replace(report, followed=followed, skipped=skipped_of(valid_rows))
    report.write(output / "update.json")
    index.remove_copies()
    unpacked.remove_copies()
    return report
