"""`emberline init`."""

from __future__ import annotations

import re
from pathlib import Path

import click

from emberline.cli.command import Command, DataArgument
from emberline.cli.data_options import DATA_CONFIG, data_options
from storage.errors import ConfigError, InvalidInput

_MODELS = ("deepfm", "dlrm", "wide_deep", "dcnv2", "din", "sasrec", "hstu", "mmoe", "ple", "two_tower")
# An option of the section `data:`, such as data.columns.
_OF_DATA = re.compile(r"\bdata\.[a-z_]+")


@click.command(
    cls=Command,
    name="init",
    epilog="""\b
Examples:
  emberline init clicks.csv --label clicked > clicks.yaml
  emberline train clicks.yaml --data clicks.csv --valid 0.1 --output runs/clicks --repository models
\b
  emberline init ratings/ --label rating --model dlrm > ratings.yaml
  emberline init shop.csv --label bought --label stars --model mmoe > shop.yaml
  emberline init shop.csv --label bought --model two_tower --item item --item tags > towers.yaml
  emberline init export.csv --label sold --delimiter ';' > export.yaml
  emberline init day.txt --label sold --data-config layout.yaml > day.yaml""",
)
@click.argument("data", nargs=-1, required=True, type=DataArgument())
@click.option(
    "--label",
    "labels",
    required=True,
    multiple=True,
    metavar="COLUMN",
    help="Column that the model learns to predict; again for one more task.",
)
@click.option(
    "--model",
    type=click.Choice(_MODELS),
    default="wide_deep",
    help="Network; docs/models.md describes them. din, sasrec and hstu need lists of ids, mmoe and ple several "
    "labels, two_tower --item.",
)
@click.option(
    "--item", multiple=True, metavar="COLUMN", help="Column of the item, its id first, for two_tower; again for others."
)
@click.option("--name", help="Name of the model.  [default: that of the first file]")
@click.option("--rows", type=click.IntRange(1000), default=200_000, help="Rows to look at, spread over the data.")
@click.option(
    "--quantiles",
    type=click.IntRange(2, 1024),
    help="Cut every column of numbers into so many ranges of equally many rows, fewer where values are equal, each "
    "with a row of a table. Default: as the column suggests.",
)
@click.option("--delimiter", help="What stands between two columns of text.  [default: a comma, in TSV a tab]")
@DATA_CONFIG
def command(
    data: tuple[Path | str, ...],
    labels: tuple[str, ...],
    model: str,
    item: tuple[str, ...],
    name: str | None,
    rows: int,
    quantiles: int | None,
    delimiter: str | None,
    data_config: Path | None,
) -> None:
    """Look at DATA and write a configuration that trains on it.

    The YAML goes to standard output, and what was found also stands in its comments. Nothing is asked, and the data is
    only read. The section `data:` of --data-config, and the delimiter, are taken over into it.

    \b
    What it decides, all of which you can change in the file:
      label      0 and 1, two texts, a rating (at least ...), or a quantity
      numbers    as they are, standardised, or their logarithm; a null has a row
                 of its own, or a feature that says so; with --quantiles, ranges
      counts     a row of a table for each range, and the logarithm
      ids        integers called ..._id or spread widely, and texts: a row of a
                 table for each; nulls have a row of their own
      texts      split where they hold several words between | ; or ,
      lists      the mean of their ids' rows; a table that they share with a
                 column of the same ids is found
      times      the hour and the weekday
      left out   columns that are constant, empty, different in every row, or
                 that give the label away, each with the reason
    """
    from emberline.draft import draft

    options = data_options(data_config, {} if delimiter is None else {"delimiter": delimiter})
    try:
        made = draft(
            list(data), labels, model=model, item=item, name=name, rows=rows, quantiles=quantiles, options=options
        )
    except (InvalidInput, ConfigError) as error:
        if not _OF_DATA.search(str(error)):
            raise
        raise ConfigError(
            f"{error} (in a YAML file, as the section `data:`, with --data-config)", field=error.field
        ) from None
    click.echo(made.text, nl=False)
    config = made.config
    click.echo(
        f"looked at {made.sample_rows:,} of {made.rows:,} rows: {len(config.inputs)} columns become "
        f"{len(config.features)} features with {len(config.tables)} tables",
        err=True,
    )
    for column, why in made.left_out:
        click.echo(f"left out: {column}: {why}", err=True)
