"""`emberline publish`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from emberline.cli.command import Command, LocalPath, Repository
from emberline.cli.row_types import OPTION_HELP, asked_row_types, print_rounding
from storage.errors import ConfigError

if TYPE_CHECKING:
    from trainer.publishing import WantedKind


@click.command(
    cls=Command,
    name="publish",
    epilog="""\b
Examples:
  emberline publish build/run --repository build/models
  emberline publish build/run --repository build/models --delta
  emberline publish build/run --repository build/models --from 3.17
  emberline publish build/run --repository build/models --row-type int8 --row-type item=bf16

\b
A module that was not trained here is published from Python:
  emberline.publish(module, sample_batch, repository, name=...)""",
)
@click.argument("run", type=LocalPath(exists=True, file_okay=False))
@click.option(
    "--repository",
    type=Repository(),
    required=True,
    help="Model repository to publish into, a folder or a URL such as s3://bucket/models.",
)
@click.option("--delta", is_flag=True, help="Publish what changed since the newest snapshot of the run.")
@click.option("--cumulative", is_flag=True, help="Publish all changes since the version, as one delta.")
@click.option("--version", type=click.IntRange(1), help="Number of the version; default: the next one.")
@click.option(
    "--from",
    "from_snapshot",
    metavar="SNAPSHOT",
    help="Continue this snapshot (VERSION.SEQUENCE or its id), e.g. the one that a rollback went back to. A delta "
    "then, if nothing else is asked for.",
)
@click.option("--row-type", "row_types", metavar="TYPE", multiple=True, help=OPTION_HELP)
@click.option("--quiet", is_flag=True, help="No progress bars.")
def command(
    run: Path,
    repository: Path | str,
    delta: bool,
    cumulative: bool,
    version: int | None,
    from_snapshot: str | None,
    row_types: tuple[str, ...],
    quiet: bool,
) -> None:
    """Publish the newest checkpoint of the training output RUN: a version, or a delta of what changed.

    A version appears at once and whole: tables, dense weights, graph, feature spec, and golden requests with the
    model's own scores; so does a delta, with changed rows, removed ids and dense weights. A config.pbtxt that is there
    already is never changed. Older versions and deltas of the same run are removed as its configuration says.

    Rows may be stored rounded (--row-type int8 --row-type item=bf16); the golden scores are those of the rows as
    stored. A delta has the row types of its version.
    """
    asked = [option for option, given in _options(delta, cumulative, version) if given]
    if len(asked) > 1:
        raise ConfigError(f"{' and '.join(asked)} exclude each other; give one of them", field=asked[1])
    from trainer import load_trained
    from trainer.publishing.target import shown

    kind: WantedKind = (
        "cumulative" if cumulative else "delta" if delta or (from_snapshot and not version) else "version"
    )
    trained = load_trained(run)
    folder = trained.publish(
        repository,
        kind=kind,
        version=version,
        from_snapshot=from_snapshot,
        row_types=asked_row_types(row_types, trained.config.publish.row_types),
        progress=not quiet,
    )
    print_rounding(folder)
    click.echo(f"published {shown(repository, folder)}")


def _options(delta: bool, cumulative: bool, version: int | None) -> list[tuple[str, bool]]:
    return [("--delta", delta), ("--cumulative", cumulative), ("--version", version is not None)]
