"""`emberline diff`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.progress import Progress

from emberline.cli.command import Command, DataArgument, LocalPath
from emberline.cli.console import JSON, print_json, table_console
from emberline.cli.data_options import DATA_CONFIG, advice_on_columns, data_options
from emberline.cli.objects import ModelPath, copy_of
from emberline.cli.sizes import BYTES
from emberline.cli.target import QUIET, bars, check_folder
from emberline.fitted_table import FittedTable, wrapping
from storage.errors import InvalidInput

if TYPE_CHECKING:
    from emberline.difference.report import SnapshotDifference
    from storage.checkpoint.as_of import AsOf
    from storage.features import Column, FeatureSpec

_LEFT = {"table", "rows are", "", "weight", "shape", "part", "name", "by itself", "changed rows that it reads"}


@click.command(
    cls=Command,
    name="diff",
    epilog="""\b
Examples:
  emberline diff --model build/models/movielens 1.0 1.3
  emberline diff --model build/models/movielens 1.0 latest --requests build/movielens/test.parquet
  emberline diff --model s3://bucket/models/movielens 3.16 3.17 --html changes.html
  emberline diff build/models/movielens/1 build/models/movielens/2""",
)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option(
    "--model",
    type=ModelPath(),
    help="The model's folder in a repository, or its URL. Without it, A and B are folders of versions or deltas.",
)
@click.option("--requests", "source", type=DataArgument(), help="Rows to score on both: file, folder, pattern or URL.")
@click.option("--rows", type=click.IntRange(1, 1_000_000), default=1000, help="Rows of --requests to score.")
@click.option("--top", type=click.IntRange(0, 1000), default=5, help="Rows and requests to list.")
@DATA_CONFIG
@click.option("--dram-bytes", type=BYTES, help="Memory for the rows of each snapshot that scores, such as 8GiB.")
@click.option("--html", type=LocalPath(dir_okay=False), metavar="FILE", help="Write it as a page, too.")
@JSON
@QUIET
def command(
    before: str,
    after: str,
    model: Path | str | None,
    source: Path | str | None,
    rows: int,
    top: int,
    data_config: Path | None,
    dram_bytes: int | None,
    html: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show what differs between the snapshots A and B of a model: rows, dense weights, and scores.

    A and B are VERSION.SEQUENCE, VERSION for its last snapshot, an id, a time, or latest. Tables are compared row by
    row, in memory that does not grow with them: how many rows were added, removed and changed, how far they moved, and
    which are used most.

    With --requests, both snapshots score the rows, and A scores them again with one part of B at a time: the rows of a
    table, those of a feature, or the dense weights. So it is said what moved the scores, and which rows of a request.
    """
    from emberline.difference.page import to_html

    check_folder("--html", html)
    pair = (_snapshot(model, before, "A"), _snapshot(model, after, "B"))
    with bars(quiet or as_json) as progress:
        found = _found(*pair, source, rows, top, data_config, dram_bytes, progress)
    if html is not None:
        html.write_text(to_html(found), encoding="utf-8")
    if as_json:
        print_json(found.to_json_value())
    else:
        _show(found)
        if html is not None:
            click.echo(f"wrote {html}")


def _found(
    before: AsOf,
    after: AsOf,
    source: Path | str | None,
    rows: int,
    top: int,
    data_config: Path | None,
    dram_bytes: int | None,
    progress: Progress,
) -> SnapshotDifference:
    from emberline.difference.report import compare_snapshots
    from emberline.difference.scores import Requests, outputs_not_compared, score_differences

    def on_table(name: str) -> Callable[[int], None]:
        total = sum(spec.rows for spec in after.version.tables if spec.name == name)
        task = progress.add_task(f"rows of {name}", total=total)
        return lambda count: progress.advance(task, count)

    if source is None:
        return compare_snapshots(before, after, top=top, on_table=on_table)[0]
    from serving.scoring import Scorer, open_source
    from storage.features import column_from_arrow

    def read(spec: FeatureSpec) -> tuple[dict[str, Column], int]:
        with advice_on_columns():
            data = open_source(spec, source, (), data_options(data_config))
        table = data.range(0, min(rows, data.rows)).read()
        return {entry.name: column_from_arrow(table.column(entry.source), entry) for entry in spec.inputs}, len(table)

    spec, spec_after = before.version.spec, after.version.spec
    columns, count = read(spec)
    columns_after = None if spec_after.inputs == spec.inputs else read(spec_after)[0]
    with ExitStack() as opened:
        scorers = []
        for as_of in (before, after):
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="emberline-diff-"))
            scorers.append(opened.enter_context(Scorer(as_of, Path(folder), dram_bytes=dram_bytes)))
        first, second = scorers
        requests = Requests(columns, count, first.features(columns, count), columns_after=columns_after)
        found, changes = compare_snapshots(before, after, top=top, requests=requests, scorer=first, on_table=on_table)
        found.scores = score_differences(first, second, requests, changes, top)
        found.not_compared = outputs_not_compared(first, second)
    return found


def _snapshot(model: Path | str | None, text: str, what: str) -> AsOf:
    from storage.checkpoint.as_of import find_as_of
    from storage.checkpoint.deltas import DELTAS, is_sequence
    from storage.checkpoint.versions import is_version

    if model is not None:
        return find_as_of(copy_of(model), text, verify=False)
    path = Path(os.path.abspath(text))
    if not (path / "manifest.json").is_file():
        raise InvalidInput(
            f"{what}: {text} is no folder of a version or delta; give such folders, or --model and snapshots of it",
            field=what,
        )
    if path.parent.name == DELTAS:
        version = path.parent.parent
        if not is_sequence(path.name) or not is_version(version.name):
            raise InvalidInput(
                f"{what}: {text} is not called as a published delta is, VERSION/{DELTAS}/NUMBER; deltas are found by "
                "their numbers, so give it the name that it was published with",
                field=what,
            )
        return find_as_of(version.parent, f"{version.name}.{int(path.name)}", verify=False)
    return find_as_of(path.parent, path.name, verify=False)


def _show(found: SnapshotDifference) -> None:
    from emberline.difference.report import grids, score_lines

    click.echo(f"from {found.before} to {found.after}")
    console = table_console()
    for grid in grids(found):
        if not grid.rows:
            continue
        table = FittedTable(*(wrapping(name) if name in _LEFT else name for name in grid.names), title=grid.title)
        for row in grid.rows:
            table.add_row(*row)
        console.print(table)
    for score in found.scores:
        for line in score_lines(score):
            click.echo(line)
    for line in found.not_compared:
        click.echo(line)
    if not (any(not table.is_same for table in found.tables) or found.weights or found.not_compared):
        click.echo("nothing differs")
