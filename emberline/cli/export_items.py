"""`emberline export-items`."""

from __future__ import annotations

from pathlib import Path

import click

from emberline.cli.command import Command, LocalPath
from emberline.cli.data_options import DATA
from emberline.cli.target import check_target


@click.command(
    cls=Command,
    name="export-items",
    epilog="""\b
Examples:
  emberline export-items runs/films --data catalogue.parquet items.parquet
  emberline export-items runs/shop --data items/ --keep sku --keep title vectors.parquet""",
)
@click.argument("run", metavar="RUN", type=LocalPath(exists=True, file_okay=False))
@click.argument("target", metavar="OUT", type=LocalPath(dir_okay=False))
@DATA
@click.option(
    "--keep", metavar="COLUMN", multiple=True, help="A column of the data to take over; may be given several times."
)
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is there.")
def command(run: Path, target: Path, data: tuple[Path | str, ...], keep: tuple[str, ...], overwrite: bool) -> None:
    """Write the embedding of each item in the data to the Parquet file OUT, for an index of nearest neighbours.

    RUN is the folder of a training of the model two_tower. The data needs the columns of the item's features alone. OUT
    has `id`, which the model's `item_id` makes of a row, and `embedding`, a list of float32, once for each item.
    """
    check_target(target, overwrite)
    from trainer import export_item_embeddings

    count = export_item_embeddings(run, list(data), target, keep=keep)
    click.echo(f"wrote the embeddings of {count:,} items: {target}")
