"""`emberline data`: data sets as Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from emberline.cli.command import Group, LocalPath

if TYPE_CHECKING:
    from trainer.datasets import DatasetReport

DIRECTORY = click.argument("directory", type=LocalPath(file_okay=False))


@click.group(cls=Group, name="data", no_args_is_help=True)
def command() -> None:
    """Write a data set as Parquet, ready for `emberline train`.

    \b
    Example:
      emberline data movielens build/movielens
    """


@command.command()
@DIRECTORY
@click.option(
    "--wheel",
    type=LocalPath(exists=True, dir_okay=False),
    help="The wheel of recbole 1.2.1, if it lies here already; else pip downloads it once.",
)
def movielens(directory: Path, wheel: Path | None) -> None:
    """MovieLens-100k: 100,000 ratings, in order of time, split 80/10/10.

    \b
    Example:
      emberline data movielens build/movielens
    """
    from trainer.datasets import write_movielens

    _print(write_movielens(directory, cache=Path.home() / ".cache" / "emberline", wheel=wheel))


@command.command()
@DIRECTORY
@click.option(
    "--rows", type=click.IntRange(1000), default=4_000_000, help="Rows in all; the last tenth is for testing."
)
@click.option("--ids", type=click.IntRange(1000), default=5_000_000, help="Different ids over all columns.")
@click.option("--seed", type=click.IntRange(0), default=1, help="The same seed gives the same files.")
def synthetic(directory: Path, rows: int, ids: int, seed: int) -> None:
    """Clicks from a planted model, so that the best reachable AUC is known.

    Ids follow a Zipf law. The AUC that the true probabilities reach is printed, and kept in dataset.json.

    \b
    Example:
      emberline data synthetic build/synthetic --rows 4000000
    """
    from trainer.datasets import write_synthetic

    _print(write_synthetic(directory, rows=rows, ids=ids, seed=seed))


@command.command()
@DIRECTORY
@click.option("--rows", type=click.IntRange(1000), default=200_000, help="Rows in all; the last tenth is for testing.")
@click.option("--seed", type=click.IntRange(0), default=1, help="The same seed gives the same files.")
def wide(directory: Path, rows: int, seed: int) -> None:
    """Forty columns without lists: dense features, string ids and unsigned 64-bit ids.

    \b
    Example:
      emberline data wide build/wide
    """
    from trainer.datasets import write_wide

    _print(write_wide(directory, rows=rows, seed=seed))


@command.command(name="criteo-like")
@DIRECTORY
@click.option("--rows", type=click.IntRange(1000), default=300_000, help="Rows in all; the last tenth is for testing.")
@click.option("--seed", type=click.IntRange(0), default=1, help="The same seed gives the same files.")
def criteo_like(directory: Path, rows: int, seed: int) -> None:
    """Rows in the form of Criteo's display ads: label, I1 to I13, C1 to C26.

    They are generated, with a planted signal, so that the best reachable AUC is known.

    \b
    Example:
      emberline data criteo-like build/criteo-like
    """
    from trainer.datasets import write_criteo_like

    _print(write_criteo_like(directory, rows=rows, seed=seed))


def _print(report: DatasetReport) -> None:
    for part, rows in report.rows.items():
        click.echo(f"{report.directory / part}.parquet: {rows:,} rows")
    for name, fact in report.facts.items():
        click.echo(f"{name}: {fact}")
