"""follow(): continues a finished run over a stream of rows as they come, and publishes the changes as deltas."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage.data.streams import Credentials, Position, Start, start_of
from storage.errors import ConfigError
from trainer.config import PublishConfig
from trainer.data import Data, DataRows
from trainer.follow_flow import FollowFlow
from trainer.follow_metrics import shown_metrics
from trainer.follow_pass import FollowPass
from trainer.follow_ranks import SharedFlow
from trainer.joining import Followed
from trainer.loop import TrainingLoop
from trainer.ranks import join_ranks
from trainer.report import FollowReport, UpdateReport
from trainer.run import skipped_of
from trainer.tracking import tracked
from trainer.trained import SAMPLE_ROWS
from trainer.update_run import OpenPass, UpdateRun


def follow(
    output: Path | str,
    source: Path | str,
    *,
    repository: Path | str,
    labels: Path | str | None = None,
    valid: Data | None = None,
    publish: PublishConfig | None = None,
    until_idle: float | None = None,
    start: str | datetime | float = "earliest",
    skip_lost: bool = False,
    credentials: Credentials = Credentials(),  # noqa: B008
    progress: bool = True,
    resume: bool = False,
    from_snapshot: str | None = None,
    dram_bytes: int | None = None,
    device: str | None = None,
    track: str | None = None,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
) -> UpdateReport:
    """Trains on the rows of a stream as they come, from the newest commit of a run, and publishes deltas on the way.

    output: the folder that `train` wrote. source: a folder whose files are read in the order of their names, and which
    is watched for new ones, or the URL of a stream (docs/streams.md). labels: a stream of the events that are labels of
    the rows, which data.join of the configuration says how to join. repository, valid, dram_bytes, device, track: as
    for `update` and `train`. Deltas follow the policy of the configuration, or of `publish`; one comes at the end. The
    end is Ctrl-C, SIGTERM, or `until_idle` seconds without a new row, after which rows that make no whole batch are
    trained on too. Every commit has the position in the stream, and the same call continues behind it, also after a
    crash. start: where a stream begins that this run has no position of: "earliest", "latest", or a moment, as text
    or as seconds since 1970, which takes the rows of that time on by training.time_column. skip_lost: goes on
    without rows that are gone before they were read. credentials: user and password of the stream, where its URL
    has none. from_snapshot: id or VERSION.SEQUENCE; training goes back to its commit and position; with resume,
    only if it has not done so already. metrics_port, metrics_host: where Prometheus finds the metrics of this
    training; 0 takes a free port. Raises NotFound for a run or snapshot that is not there, ConfigError,
    InvalidInput.
    """
    if until_idle is not None and not (math.isfinite(until_idle) and until_idle >= 0.0):
        raise ConfigError(f"until_idle is {until_idle}, expected seconds, 0 or more", field="until_idle")
    begin = start_of(start)
    with join_ranks() as ranks:
        run = UpdateRun(
            output,
            repository,
            ranks,
            valid=valid,
            publish=publish,
            dram_bytes=dram_bytes,
            device=device,
            track=track,
            progress=progress,
        )
        config = run.config
        if until_idle is None and not run.policy.publishes_deltas:
            raise ConfigError(
                "publish: a stream does not end, and no limit says when a delta is due; set "
                "publish.delta_every_seconds, delta_every_rows or delta_every_steps (--every-seconds, --every-rows, "
                "--every-steps)",
                field="publish.delta_every_seconds",
            )
        if isinstance(begin, int) and config.training.time_column is None:
            raise ConfigError(
                "start: a stream begins with a time by the times of its rows; set training.time_column",
                field="training.time_column",
            )
        # The first rank reads the stream, and tells the others what has come.
        streams = Followed(config, source, labels, run.output, credentials) if ranks.is_first else None
        with closing(streams.stream) if streams is not None else nullcontext():
            return _follow(
                run,
                streams,
                lambda opened: _position(opened.loop, streams, begin, skip_lost=skip_lost),
                until_idle,
                {"resume": resume, "from_snapshot": from_snapshot},
                (metrics_host, metrics_port),
            )


def _position(loop: TrainingLoop, streams: Followed | None, begin: Start, *, skip_lost: bool) -> Position | None:
    """Returns where the stream continues; None at the other ranks than the first."""
    if streams is None:
        return None
    known = loop.streams.get(streams.stream.name)
    at = streams.stream.seek(None if known is None else known["at"], begin, skip_lost=skip_lost)
    position = {"at": at, "rows": 0} if known is None else {**known, "at": at}
    if known is None and isinstance(begin, int):
        position["since"] = begin
    return position


def _follow(
    run: UpdateRun,
    streams: Followed | None,
    position_of: Callable[[OpenPass], Position | None],
    until_idle: float | None,
    start: Mapping[str, Any],
    metrics: tuple[str, int | None],
) -> UpdateReport:
    config, ranks = run.config, run.ranks
    name = ranks.from_first("" if streams is None else streams.stream.name)
    # It has the place of the rows that a pass over data has.
    rows = DataRows((), pa.schema([]), hashlib.sha256(f"stream {name}".encode()).hexdigest())
    followed: FollowReport | None = None
    with run.opened(rows, **start, follows=name) as opened:
        loop = opened.loop
        position = ranks.from_first(position_of(opened))
        assert position is not None
        loop.streams = {**loop.streams, name: position}
        update = opened.begin()
        stream, joined = (None, None) if streams is None else (streams.stream, streams.joined)
        flow: FollowFlow | None = None
        if stream is not None:
            flow = FollowFlow(config, stream, loop.stages, position, loop.batches)
        shared = SharedFlow(ranks, config, loop.stages, flow, loop.batches, loop.reading) if ranks.are_several else flow
        assert shared is not None

        def renew() -> None:
            newer = None if flow is None else flow.recent(SAMPLE_ROWS // 2)
            if newer is not None:
                opened.renew_sample(newer)

        following = FollowPass(loop, shared, name, stream, opened.display, until_idle, joined, renew)
        with ExitStack() as around:
            if stream is not None:
                port = around.enter_context(shown_metrics(loop, joined or stream, *metrics))
                loop.track = around.enter_context(tracked(config, run.output, loop.position.step, {"follow": name}))
                if port is not None:
                    opened.display.say(f"metrics: http://{metrics[0]}:{port}/metrics")
            following.run(update)
        if flow is not None:
            followed = following.report()
            renew()
        opened.end()
    report = replace(opened.report(update), followed=followed, skipped=skipped_of(run.valid))
    if streams is not None:
        report.write(run.output / "update.json")
        run.index.remove_copies()
        streams.remove_copies()
    return report
