"""`emberline train`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from emberline.cli.command import Command, DataArgument, LocalPath, Repository
from emberline.cli.data_options import DATA, VALID
from emberline.cli.ranks import rank_options, run_ranks, starts_ranks
from emberline.cli.row_types import OPTION_HELP, asked_row_types, print_published
from emberline.cli.sizes import SOME_BYTES
from emberline.cli.target import QUIET
from storage.errors import ChangedConfig, ConfigError

if TYPE_CHECKING:
    from trainer import StartFrom, TrainReport

# Options that the command for a new run has otherwise.
_NOT_REPEATED = ("resume", "output", "start_from", "max_restarts")


@click.command(
    cls=Command,
    name="train",
    epilog="""\b
Examples:
  emberline train trainer/configs/movielens.yaml --data build/movielens/train.parquet \\
      --valid build/movielens/valid.parquet --output build/run --repository build/models
  emberline train model.yaml --data clicks/ --valid 0.1 --output run
  emberline train model.yaml --data clicks/ --valid 0.1 --output run --resume
  emberline train model.yaml --data clicks/ --valid 0.1 --output run --nproc 2
  emberline train wider.yaml --data clicks/ --valid 0.1 --output run-2 --from run --dry-run""",
)
@click.argument("config", type=LocalPath(exists=True, dir_okay=False))
@DATA
@VALID
@click.option(
    "--output",
    type=LocalPath(file_okay=False),
    required=True,
    help="Folder for checkpoints and the report.",
)
@click.option(
    "--repository",
    type=Repository(),
    help="Model repository (a folder, or a URL such as s3://bucket/models) to publish into when done, and on the way "
    "if the configuration says so.",
)
@click.option("--limit", type=click.IntRange(1), help="Train on the first rows of --data only.")
@click.option("--row-type", "row_types", metavar="TYPE", multiple=True, help=OPTION_HELP)
@click.option("--resume", is_flag=True, help="Go on from the newest commit in --output.")
@click.option(
    "--from",
    "start_from",
    type=LocalPath(),
    help="Begin with the rows and weights of this run's folder, or of REPOSITORY/MODEL[/VERSION], as far as they fit.",
)
@click.option(
    "--map",
    "renamed",
    metavar="NEW=OLD",
    multiple=True,
    help="With --from: the table or feature NEW was called OLD there; may be given several times.",
)
@click.option(
    "--partial",
    is_flag=True,
    help="With --from another type of model: take dense weights of the same names, and leading blocks of other shapes.",
)
@click.option("--dry-run", is_flag=True, help="With --from: print what would be taken, and stop.")
@click.option(
    "--dram-bytes",
    type=SOME_BYTES,
    help="Memory of all tables together, such as 8GiB (training.dram_bytes); rows beyond it lie on SSD, under "
    "--output.",
)
@click.option(
    "--device",
    metavar="DEVICE",
    help="Where the dense part is computed: cpu, cuda (a GPU), cuda:N, or auto (a GPU if there is one), instead of "
    "training.device.",
)
@click.option(
    "--track",
    type=click.Choice(["tensorboard", "mlflow"]),
    help="Write losses, rates, metrics and table sizes while training, as `tracking` in the configuration does: to "
    "OUTPUT/tensorboard, or to MLflow (MLFLOW_TRACKING_URI, or OUTPUT/mlflow.db).",
)
@rank_options
@QUIET
def command(
    config: Path,
    data: tuple[Path | str, ...],
    valid: str | None,
    output: Path,
    repository: Path | str | None,
    limit: int | None,
    row_types: tuple[str, ...],
    resume: bool,
    start_from: Path | None,
    renamed: tuple[str, ...],
    partial: bool,
    dry_run: bool,
    dram_bytes: int | None,
    device: str | None,
    track: str | None,
    nproc: int | None,
    max_restarts: int,
    quiet: bool,
) -> None:
    """Train the model that CONFIG describes, and publish it if --repository is given.

    CONFIG is one YAML file: columns, feature transforms, tables, label, model and optimizers (docs/training.md). Ctrl-C
    saves a checkpoint; --resume goes on from it to the bit as if nothing had happened. `emberline update` goes on over
    newer rows when the training is done. --from begins a new run with what another one, or a published version, has of
    the same tables and features.
    """
    from trainer import plan_start, train
    from trainer.config import load_config, with_row_types
    from trainer.config_source import named_file
    from trainer.rank_limits import check_ranks
    from trainer.rank_place import is_first_rank
    from trainer.ranks import Ranks
    from trainer.row_memory import with_dram_bytes
    from trainer.run import check_output

    settings = load_config(config)
    asked = asked_row_types(row_types, settings.publish.row_types)
    started = _start_from(start_from, renamed, partial=partial, dry_run=dry_run)
    if dry_run and started is not None:
        with named_file(config):
            click.echo(plan_start(settings, started).text())
        return
    if starts_ranks(nproc):
        assert nproc is not None
        with named_file(config):
            check_ranks(with_dram_bytes(settings, dram_bytes), Ranks(0, nproc))
        check_output(output, resume=resume)  # once, and not by each rank
        run_ranks(nproc, max_restarts)
    try:
        with named_file(config):
            report = train(
                settings if asked is None else with_row_types(settings, asked),
                list(data),
                output=output,
                repository=repository,
                valid=validation(valid),
                limit=limit,
                progress=not quiet,
                resume=resume,
                dram_bytes=dram_bytes,
                device=device,
                start_from=started,
                track=track,
            )
    except ChangedConfig as error:
        command_line = _command_from(output, click.get_current_context())
        raise ConfigError(f"{error}:\n  {command_line}", field=error.field) from None
    if is_first_rank():
        _print(report, repository)


def _start_from(source: Path | None, renamed: tuple[str, ...], *, partial: bool, dry_run: bool) -> StartFrom | None:
    from trainer import StartFrom

    if source is None:
        for option, given in (("--map", renamed), ("--partial", partial), ("--dry-run", dry_run)):
            if given:
                raise click.UsageError(f"{option} is for --from, which is not given")
        return None
    names: dict[str, str] = {}
    for text in renamed:
        new, equals, old = text.partition("=")
        if not (new and equals and old):
            raise click.BadParameter(f"{text!r}: expected NEW=OLD", param_hint="--map")
        if new in names:
            raise click.BadParameter(f"{new!r} is given twice", param_hint="--map")
        names[new] = old
    return StartFrom(source, names, partial)


def _command_from(output: Path, context: click.Context) -> str:
    """Returns the command that starts a new run of the same options from the run in `output`."""
    number = 2
    while (new := output.with_name(f"{output.name}-{number}")).exists():
        number += 1
    words = ["emberline", "train", str(context.params["config"])]
    for option in context.command.params:
        value = context.params[option.name or ""]
        if not isinstance(option, click.Option) or option.name in _NOT_REPEATED:
            continue
        if option.is_flag:
            words += [option.opts[0]] if value else []
            continue
        for each in value if option.multiple else [value]:
            words += [] if each is None else [option.opts[0], str(each)]
    return shlex.join([*words, "--output", str(new), "--from", str(output)])


def validation(given: str | None) -> float | Path | str | None:
    """Returns --valid as a fraction or as data. Raises click.BadParameter."""
    if given is None:
        return None
    try:
        return float(given)
    except ValueError:
        pass
    try:
        path: Path | str = DataArgument().convert(given, None, None)
    except click.BadParameter:
        raise click.BadParameter(
            f"{given!r} is neither a file nor a fraction between 0 and 1", param_hint="--valid"
        ) from None
    return path


def _print(report: TrainReport, repository: Path | str | None) -> None:
    from trainer.report import metrics_text

    click.echo(f"trained {report.rows:,} rows in {report.seconds:.1f} s ({report.rows_per_second:,.0f} rows/s)")
    if report.metrics:
        click.echo(f"validation: {metrics_text(report.metrics)} on {report.valid_rows:,} rows")
    for file in report.skipped:
        click.echo(f"left out as damaged: {file.reason}")
    for text in report.warnings:
        click.echo(f"warning: {text}")
    if report.best_epoch is not None:
        click.echo(f"kept the model of epoch {report.best_epoch}, the best of {len(report.epochs)}")
    for table in report.tables:
        click.echo(
            f"table {table.name}: {table.rows:,} rows of {table.dim}, {table.waiting:,} ids not seen often enough, "
            f"{table.memory_bytes / 2**20:.1f} MiB"
        )
    if report.profile is not None:
        click.echo(f"stages: {report.profile.line()}")
        for rank in report.profile.ranks:
            click.echo(rank.line())
    if report.memory is not None:
        click.echo(f"memory: {report.memory.line()}")
    if report.device is not None:
        click.echo(f"device: {report.device.line()}")
    if report.hbm is not None:
        click.echo(f"hbm: {report.hbm.line()}")
    if report.published is None:
        click.echo(f"publish with: emberline publish {report.output} --repository DIR")
    else:
        from trainer.publishing.target import shown

        assert repository is not None
        print_published(report.published)
        click.echo(f"published {shown(repository, report.published)}")
