"""`emberline score` and `emberline export`: write scores and rows as Parquet, as of a snapshot, without a server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from emberline.cli.command import Command, DataArgument, LocalPath
from emberline.cli.data_options import DATA_CONFIG, advice_on_columns, data_options
from emberline.cli.objects import ModelPath, copy_of
from emberline.cli.sizes import BYTES
from emberline.cli.target import QUIET, bars, check_target, counting

_AS_OF = click.option(
    "--as-of",
    metavar="SNAPSHOT",
    default="latest",
    show_default=True,
    help="VERSION.SEQUENCE, VERSION for its last, an id, or a time such as 2026-11-22T10:00 (UTC): what was published "
    "by then.",
)
_MODEL = click.option(
    "--model",
    required=True,
    type=ModelPath(),
    help="The model's folder in a repository, such as build/models/movielens, or its URL, such as "
    "s3://bucket/models/movielens.",
)
_FORCE = click.option("--overwrite", is_flag=True, help="Replace OUT if it is there.")
_OUT = click.argument("target", metavar="OUT", type=LocalPath(dir_okay=False))


@click.command(
    cls=Command,
    name="score",
    epilog="""\b
Examples:
  emberline score --model build/models/movielens build/movielens/test.parquet scores.parquet
  emberline score --model build/models/movielens --as-of 1.3 --keep user --keep item in.parquet out.parquet
  emberline score --model build/models/movielens --as-of 2026-11-22T10:00 in/ out.parquet""",
)
@click.argument("source", metavar="IN", type=DataArgument())
@_OUT
@_MODEL
@_AS_OF
@click.option(
    "--keep", metavar="COLUMN", multiple=True, help="A column of IN to take over into OUT; may be given several times."
)
@click.option(
    "--batch-rows", type=click.IntRange(1, 1_000_000), default=4096, show_default=True, help="Scored at once."
)
@click.option(
    "--threads", type=click.IntRange(1, 256), default=lambda: len(os.sched_getaffinity(0)), help="Default: all cores."
)
@click.option("--dram-bytes", type=BYTES, help="Memory for rows, such as 8GiB; the rest is read from --store.")
@click.option(
    "--store",
    type=LocalPath(file_okay=False),
    help="Where the rows go on disk; given again, they need not be loaded again. Default: a temporary folder.",
)
@DATA_CONFIG
@_FORCE
@QUIET
def score(
    source: Path | str,
    target: Path,
    model: Path | str,
    as_of: str,
    keep: tuple[str, ...],
    batch_rows: int,
    threads: int,
    dram_bytes: int | None,
    store: Path | None,
    data_config: Path | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Score every row of IN as of a snapshot, into the Parquet file OUT.

    IN is a file, a folder, a pattern or a URL, of Parquet, CSV, TSV, ORC, Arrow or libsvm. Its columns are those that
    the model was trained on. Features, lookups and the dense graph are the server's own, and the snapshot must
    reproduce its golden requests before a row is scored.
    """
    check_target(target, overwrite)
    from serving.scoring import Scorer, find_as_of, open_source, score_parquet

    found = find_as_of(copy_of(model), as_of)
    with advice_on_columns():
        rows = open_source(found.version.spec, source, keep, data_options(data_config))
    with (
        _folder(store, target) as folder,
        bars(quiet) as shown,
        Scorer(found, folder, dram_bytes=dram_bytes, progress=_loading(shown)) as scorer,
    ):
        count = score_parquet(
            scorer,
            rows,
            target,
            keep=keep,
            batch_rows=batch_rows,
            threads=threads,
            progress=counting(shown, "scoring rows"),
        )
    click.echo(f"scored {count:,} rows as of {found}: {target}")


@click.command(
    cls=Command,
    name="export",
    epilog="""\b
Examples:
  emberline export --model build/models/movielens item items.parquet
  emberline export --model build/models/movielens --as-of 1.3 user users.parquet""",
)
@click.argument("table")
@_OUT
@_MODEL
@_AS_OF
@_FORCE
@QUIET
def export(table: str, target: Path, model: Path | str, as_of: str, overwrite: bool, quiet: bool) -> None:
    """Write the rows of TABLE as of a snapshot into the Parquet file OUT: `id`, ascending, and `row`, as served."""
    check_target(target, overwrite)
    from serving.scoring import export_table, find_as_of

    found = find_as_of(copy_of(model), as_of)
    with bars(quiet) as shown:
        rows = export_table(found, table, target, progress=counting(shown, f"rows of {table}"))
    click.echo(f"wrote {rows:,} rows of {table} as of {found}: {target}")


@contextmanager
def _folder(store: Path | None, target: Path) -> Iterator[Path]:
    """Yields the store's folder; beside OUT, where there is room for results, when none is given."""
    if store is not None:
        store.mkdir(parents=True, exist_ok=True)
        yield store
        return
    with tempfile.TemporaryDirectory(prefix=".emberline-score-", dir=target.parent) as folder:
        yield Path(folder)


def _loading(bars: Progress) -> Any:
    tasks: dict[tuple[str, str], Any] = {}

    def report(stage: str, table: str, done: int, rows: int) -> None:
        key = (stage, table)
        if key not in tasks:
            tasks[key] = bars.add_task(f"loading {table} to {'disk' if stage == 'ssd' else 'memory'}", total=rows)
        bars.update(tasks[key], completed=done, total=rows, visible=done < rows)

    return report
