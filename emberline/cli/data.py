"""`emberline data`: data sets, and files of other formats, as Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from emberline.cli.command import DataArgument, Group, LocalPath
from emberline.cli.data_options import DATA_CONFIG, data_options, named
from emberline.cli.target import QUIET, bars, check_target, counting

if TYPE_CHECKING:
    from trainer.datasets import DatasetReport

DIRECTORY = click.argument("directory", type=LocalPath(file_okay=False))


@click.group(cls=Group, name="data", no_args_is_help=True)
def command() -> None:
    """Write a data set as Parquet, ready for `emberline train`: one of several that come with it, or your own files.

    \b
    Examples:
      emberline data movielens build/movielens
      emberline data convert clicks/ clicks.parquet
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


@command.command(
    epilog="""\b
Examples:
  emberline data convert clicks.csv clicks.parquet
  emberline data convert clicks.csv clicks.parquet --type user_id=string --type price=float32
  emberline data convert --format csv --delimiter ';' --columns user,item,label 'day-*.txt' clicks.parquet
  emberline data convert clicks/ clicks.parquet --type 'tags=list<int64>' --list-delimiter ' '
  emberline data convert s3://bucket/clicks/ clicks.parquet --on-damaged skip"""
)
@click.argument("source", metavar="IN", type=DataArgument())
@click.argument("target", metavar="OUT", type=LocalPath(dir_okay=False))
@click.option("--format", "name", help="csv, tsv or libsvm, for files whose extension does not tell it.")
@click.option("--delimiter", help="Between two fields of a line; default: a comma, a tab in TSV.")
@click.option("--columns", help="Names of the columns, between commas, where the first line has none.")
@click.option("--null", "nulls", multiple=True, help="A field that is null, such as NA; default: the empty field.")
@click.option("--list-delimiter", help="Between the values of a list in one field; default: |.")
@click.option(
    "--type",
    "types",
    metavar="COLUMN=TYPE",
    multiple=True,
    help="Arrow type of a column, such as int64, float32, string, timestamp[s] or list<int64>; may be given several "
    "times. Other columns of text have the type that the rows of their file suggest.",
)
@click.option("--on-damaged", type=click.Choice(["fail", "skip"]), help="What a damaged file means; default: fail.")
@DATA_CONFIG
@click.option(
    "--row-group-rows",
    type=click.IntRange(1, 1 << 24),
    default=131_072,
    show_default=True,
    help="Rows of a row group, which are read and shuffled together.",
)
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is there.")
@QUIET
def convert(
    source: Path | str,
    target: Path,
    name: str | None,
    delimiter: str | None,
    columns: str | None,
    nulls: tuple[str, ...],
    list_delimiter: str | None,
    types: tuple[str, ...],
    on_damaged: str | None,
    data_config: Path | None,
    row_group_rows: int,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Write the rows of IN as the Parquet file OUT.

    IN is a file, a folder with or without partitions, a pattern in quotes, or a URL, of CSV, TSV, libsvm (each also
    compressed), ORC, Arrow or Parquet. Training reads all of these directly; Parquet is read faster, because only the
    columns in use are. OUT appears when it is complete. A row that cannot be read ends the command, and is named by its
    file and line.
    """
    from storage.data import convert as convert_data

    check_target(target, overwrite)
    given = {
        "format": name,
        "delimiter": delimiter,
        "columns": columns and columns.split(","),
        "null_values": list(nulls) or None,
        "list_delimiter": list_delimiter,
        "types": named(types, "--type") or None,
        "on_damaged": on_damaged,
    }
    options = data_options(data_config, {key: value for key, value in given.items() if value is not None})
    with bars(quiet) as shown:
        report = convert_data(
            source, target, options, row_group_rows=row_group_rows, progress=counting(shown, "converting rows")
        )
    for file in report.skipped:
        click.echo(f"left out as damaged: {file.reason}")
    click.echo(f"wrote {report.rows:,} rows, {report.bytes / 2**20:.1f} MiB: {target}")


def _print(report: DatasetReport) -> None:
    for part, rows in report.rows.items():
        click.echo(f"{report.directory / part}.parquet: {rows:,} rows")
    for name, fact in report.facts.items():
        click.echo(f"{name}: {fact}")
