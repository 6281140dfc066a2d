"""`emberline update`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emberline.cli.command import Command, DataArgument, LocalPath, Repository
from emberline.cli.ranks import rank_options, run_ranks, starts_ranks
from emberline.cli.sizes import SOME_BYTES
from emberline.cli.target import QUIET

if TYPE_CHECKING:
    from trainer import UpdateReport


@click.command(
    cls=Command,
    name="update",
    epilog="""\b
Examples:
  emberline update build/run --data build/movielens/newer.parquet --repository build/models
  emberline update run --data today/ --repository models --every-rows 100000 --every-seconds 10
  emberline update run --data today/ --repository models --resume
  emberline update run --data today/ --repository models --nproc 2
  emberline update run --data mended.parquet --repository models --at 3.17
  emberline update run --follow clicks/ --repository models --every-seconds 10
  emberline update run --follow redis://localhost:6379/0?stream=clicks --repository models --every-seconds 10""",
)
@click.argument("run", type=LocalPath(exists=True, file_okay=False))
@click.option(
    "--data",
    type=DataArgument(),
    multiple=True,
    help="File, folder, pattern or URL of newer rows; may be given several times.",
)
@click.option(
    "--follow",
    metavar="SOURCE",
    help="A folder that files are added to, or a stream: redis://HOST:PORT/0?stream=NAME, kafka://HOST:PORT/TOPIC.",
)
@click.option(
    "--labels",
    metavar="SOURCE",
    help="A stream of the labels of --follow's rows, as data.join of the configuration says.",
)
@click.option(
    "--repository",
    type=Repository(),
    required=True,
    help="Model repository that RUN was published into, a folder or a URL such as s3://bucket/models.",
)
@click.option("--valid", type=DataArgument(), help="File, folder, pattern or URL to evaluate on, before and after.")
@click.option("--every-steps", type=click.IntRange(1), help="Publish a delta after so many steps.")
@click.option("--every-rows", type=click.IntRange(1), help="Publish a delta after so many rows.")
@click.option("--every-seconds", type=click.FloatRange(0, min_open=True), help="Publish a delta after so many seconds.")
@click.option(
    "--until-idle",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="End --follow when nothing has come for so many seconds.",
)
@click.option(
    "--start",
    metavar="earliest|latest|TIME",
    help="Where --follow begins the first time: with the oldest row (the default), behind the newest, or with the rows "
    "from a time on, such as 2026-11-27T10:00:00Z.",
)
@click.option(
    "--skip-lost", is_flag=True, help="Go on with --follow without rows that were removed before they were read."
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Show Prometheus metrics of --follow on this port; 0 takes a free one.",
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address that --metrics-port listens on.")
@click.option("--resume", is_flag=True, help="Go on with the update that was interrupted; begin one if there is none.")
@click.option("--at", metavar="SNAPSHOT", help="Go back to this published snapshot (VERSION.SEQUENCE or id) first.")
@click.option(
    "--dram-bytes",
    type=SOME_BYTES,
    help="Memory of all tables together, such as 8GiB (training.dram_bytes); rows beyond it lie on SSD, under RUN.",
)
@click.option(
    "--device",
    metavar="DEVICE",
    help="Where the dense part is computed: cpu, cuda (a GPU), cuda:N, or auto (a GPU if there is one), instead of "
    "training.device.",
)
@rank_options
@QUIET
def command(
    run: Path,
    data: tuple[Path | str, ...],
    follow: str | None,
    labels: str | None,
    repository: Path | str,
    valid: Path | str | None,
    every_steps: int | None,
    every_rows: int | None,
    every_seconds: float | None,
    until_idle: float | None,
    start: str | None,
    skip_lost: bool,
    metrics_port: int | None,
    metrics_host: str,
    resume: bool,
    at: str | None,
    dram_bytes: int | None,
    device: str | None,
    nproc: int | None,
    max_restarts: int,
    quiet: bool,
) -> None:
    """Go on training the finished RUN over newer rows, and publish what changes.

    One pass over --data in its order. A delta is published at the end, and on the way as the configuration of RUN says
    (publish.delta_every_steps, _rows, _seconds) or the --every options, which then take its place. A running server
    that watches the repository shows each delta within a second.

    With --follow it trains on the files of a folder, or on the entries of a stream, as they come, until Ctrl-C, SIGTERM
    or --until-idle. The same command then continues behind the last row, also after a crash.

    After Ctrl-C or a crash, --resume goes on to the bit as if nothing had happened, and a snapshot that was half
    published is published first. --at goes back to a snapshot: training continues from the state it was made from (as
    many are kept as publish.keep_states says, at least), and the next delta leads on from it.
    """
    if (follow is None) == (not data):
        raise click.UsageError("give newer rows, either as --data or as --follow")
    for option, given in (
        ("--until-idle", until_idle),
        ("--start", start),
        ("--skip-lost", skip_lost or None),
        ("--metrics-port", metrics_port),
        ("--labels", labels),
    ):
        if given is not None and follow is None:
            raise click.UsageError(f"{option} is for --follow, which is not given")
    if starts_ranks(nproc):
        assert nproc is not None
        run_ranks(nproc, max_restarts)
    from storage.data.streams import Credentials
    from trainer import follow as follow_stream
    from trainer import update
    from trainer.rank_place import is_first_rank
    from trainer.trained import read_config

    publish = None
    if every_steps or every_rows or every_seconds:
        publish = read_config(run).publish.model_copy(
            update={
                "delta_every_steps": every_steps or 0,
                "delta_every_rows": every_rows or 0,
                "delta_every_seconds": every_seconds or 0.0,
            }
        )
    options: dict[str, Any] = {
        "repository": repository,
        "valid": valid,
        "publish": publish,
        "progress": not quiet,
        "resume": resume,
        "from_snapshot": at,
        "dram_bytes": dram_bytes,
        "device": device,
    }
    if follow is None:
        report = update(run, list(data), **options)
    else:
        report = follow_stream(
            run,
            follow,
            labels=labels,
            until_idle=until_idle,
            start=start or "earliest",
            skip_lost=skip_lost,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            credentials=Credentials(
                os.environ.get("EMBERLINE_STREAM_USER"), os.environ.get("EMBERLINE_STREAM_PASSWORD")
            ),
            **options,
        )
    if is_first_rank():
        _print(report, repository)


def _print(report: UpdateReport, repository: Path | str) -> None:
    from trainer.publishing.target import shown
    from trainer.report import change_text

    click.echo(f"trained {report.rows:,} rows in {report.seconds:.1f} s ({report.rows_per_second:,.0f} rows/s)")
    if report.followed is not None:
        click.echo(f"followed {report.followed.stream}: {report.followed.waiting:,} {report.followed.unit} waiting")
        if report.followed.joined:
            click.echo(
                "joined {positives} of {rows} rows with a label; {rows_late} rows and {labels_late} labels came too "
                "late, {waiting_rows} rows wait".format(**report.followed.joined)
            )
        for stage, found in report.followed.freshness.items():
            click.echo(f"events {stage} after {found['p50']:.1f} s (p50), {found['p99']:.1f} s (p99)")
    if report.metrics_after:
        change = change_text(report.metrics_before, report.metrics_after)
        click.echo(f"validation: {change} on {report.valid_rows:,} rows")
    for text in report.warnings:
        click.echo(f"warning: {text}")
    for file in report.skipped:
        click.echo(f"left out as damaged: {file.reason}")
    if report.memory is not None:
        click.echo(f"memory: {report.memory.line()}")
    if report.device is not None:
        click.echo(f"device: {report.device.line()}")
    if report.hbm is not None:
        click.echo(f"hbm: {report.hbm.line()}")
    for folder in report.published:
        click.echo(f"published {shown(repository, folder)}")
