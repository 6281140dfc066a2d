"""`emberline data`: data sets as Parquet."""

from __future__ import annotations

from pathlib import Path

import click

DIRECTORY = click.argument("directory", type=click.Path(path_type=Path, file_okay=False))


@click.group(name="data", no_args_is_help=True)
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
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The wheel of recbole 1.2.1, if it lies here already; else pip downloads it once.",
)
def movielens(directory: Path, wheel: Path | None) -> None:
    """MovieLens-100k: 100,000 ratings, in order of time, split 80/10/10.

    \b
    Example:
      emberline data movielens build/movielens
    """
    from trainer.datasets import write_movielens

    write_movielens(directory, wheel=wheel, say=click.echo)


@command.command()
@DIRECTORY
@click.option(
    "--rows", type=click.IntRange(1000), default=2_000_000, help="Rows in all; the last tenth is for testing."
)
@click.option("--ids", type=click.IntRange(100), default=5_000_000, help="Different item ids to draw from.")
@click.option("--seed", type=click.IntRange(0), default=1, help="The same seed gives the same files.")
def synthetic(directory: Path, rows: int, ids: int, seed: int) -> None:
    """Clicks from a planted model, so that the best reachable AUC is known.

    Ids follow a Zipf law; the probabilities that drew the labels are in the files, and the AUC that they reach is in planted.json.

    \b
    Example:
      emberline data synthetic build/synthetic --rows 4000000
    """
    from trainer.datasets import write_synthetic

    write_synthetic(directory, rows=rows, ids=ids, seed=seed, say=click.echo)


@command.command()
@DIRECTORY
@click.option("--rows", type=click.IntRange(1000), default=50_000, help="Rows in all; the last tenth is for testing.")
@click.option("--seed", type=click.IntRange(0), default=1, help="The same seed gives the same files.")
def wide(directory: Path, rows: int, seed: int) -> None:
    """Forty columns without lists: dense features, string ids and unsigned 64-bit ids.

    \b
    Example:
      emberline data wide build/wide
    """
    from trainer.datasets import write_wide

    write_wide(directory, rows=rows, seed=seed, say=click.echo)
