"""`emberline inspect`: shows what a run, a version, a delta, a model, a repository or a file of rows holds."""

from __future__ import annotations

from pathlib import Path

import click

from emberline.cli.command import Command, DataArgument, LocalPath
from emberline.cli.console import table_console
from emberline.cli.data_options import DATA_CONFIG, data_options
from emberline.cli.inspect_published import MANIFEST, delta_view, is_delta, repository_view, version_view
from emberline.cli.inspect_tables import TableOptions, analyse, run_view, write_json
from emberline.cli.objects import copy_of, is_published, look_into
from emberline.cli.target import QUIET
from emberline.cli.view import View
from emberline.fitted_table import FittedTable, wrapping
from storage.paths import local_path

_FILE = LocalPath(dir_okay=False)


@click.command(
    cls=Command,
    name="inspect",
    epilog="""\b
Examples:
  emberline inspect build/models                  all models and versions
  emberline inspect build/models/movielens/1      one version and its deltas, every digest checked
  emberline inspect build/models/movielens/1/deltas/000007   one delta
  emberline inspect build/movielens/train.parquet
  emberline inspect build/run                     a training run
  emberline inspect build/run --tables            its tables: counts, last use, norms, thresholds, budgets
  emberline inspect build/run --tables --html tables.html    the same as a page with plots
  emberline inspect build/run --table item --parquet item.parquet   every row, and ids without one
  emberline inspect build/models/movielens --table item --json -    as served now; counts are approximate""",
)
@click.argument("path", type=DataArgument())
@click.option(
    "--table",
    "names",
    metavar="NAME",
    multiple=True,
    help="Analyse this table of a run, or of a model's newest snapshot; may be given several times.",
)
@click.option("--tables", "every", is_flag=True, help="Analyse all tables.")
@click.option(
    "--json", "json_file", type=_FILE, metavar="FILE", help="Write what is shown as JSON to FILE; - prints it."
)
@click.option(
    "--html", type=_FILE, metavar="FILE", help="Write the analysis as a page with plots, which needs no network."
)
@click.option(
    "--parquet",
    type=_FILE,
    metavar="FILE",
    help="Write the rows of one table as Parquet, ids without a row beside it as *.waiting.parquet.",
)
@click.option(
    "--data",
    type=DataArgument(),
    multiple=True,
    help="Training data (file, folder, pattern or URL) to measure the collisions of hashed features on; may be given "
    "several times.",
)
@DATA_CONFIG
@click.option(
    "--data-rows", type=click.IntRange(1, 100_000_000), default=1_000_000, help="Rows of --data to read, in memory."
)
@click.option(
    "--near-zero",
    type=click.FloatRange(0, min_open=True),
    default=1e-3,
    help="Rows of a smaller L2 norm count as zero.",
)
@click.option("--hottest", type=click.IntRange(0, 1000), default=5, help="Most used ids to list for each table.")
@click.option(
    "--sample", type=click.IntRange(0, 1000), default=5, help="Rows, drawn by chance, to list for each table."
)
@click.option("--no-verify", is_flag=True, help="Do not compute digests (names and sizes are still checked).")
@click.option("--overwrite", is_flag=True, help="Replace files that are there.")
@QUIET
def command(
    path: Path | str,
    names: tuple[str, ...],
    every: bool,
    json_file: Path | None,
    html: Path | None,
    parquet: Path | None,
    data: tuple[Path | str, ...],
    data_config: Path | None,
    data_rows: int,
    near_zero: float,
    hottest: int,
    sample: int,
    no_verify: bool,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Show what PATH holds: a run, a repository, a model, a version, a delta, or data: a file, folder, pattern or URL.

    PATH may be the URL of a repository in an object store, or of what is in it. Of a version or delta there, and of a
    model whose tables are analysed, a copy is made first.

    With --table or --tables, analyse embedding tables: of a run (its output folder, or one of its commits) with exact
    counts, or of a model's folder or a version, deltas included.
    """
    options = TableOptions(
        names=names,
        every=every,
        json=json_file,
        parquet=parquet,
        html=html,
        data=data,
        data_config=data_config,
        data_rows=data_rows,
        near_zero=near_zero,
        hottest=hottest,
        sample=sample,
        verify=not no_verify,
        overwrite=overwrite,
        quiet=quiet,
    )
    options.check()
    found: View | Path | str = path
    if isinstance(path, str) and is_published(path):
        found = copy_of(path) if options.wanted else look_into(path)
    if options.wanted:
        assert not isinstance(found, View)
        analyse(table_console(), local_path(found, "PATH"), options)
        return
    if isinstance(found, str):
        found = _data_view(found, data_config)
    elif isinstance(found, Path):
        found = _view(found, data_config, hottest, verify=not no_verify, quiet=quiet)
    if json_file is None:
        found.show(table_console())
    else:
        write_json(json_file, found.document)


def _view(path: Path, data_config: Path | None, hottest: int, *, verify: bool, quiet: bool) -> View:
    if is_delta(path):
        return delta_view(path, hottest, verify=verify)
    if (path / MANIFEST).is_file() or (path.is_dir() and path.name.isdecimal()):
        return version_view(path, hottest, verify=verify)
    if path.is_dir() and path.name == "deltas" and (path.parent / MANIFEST).is_file():
        return version_view(path.parent, hottest, verify=verify)
    if path.is_file() or _holds_data(path):
        return _data_view(path, data_config)
    if (path / "checkpoints").is_dir() or (path / "state.json").is_file():
        return run_view(path, verify, quiet)
    return repository_view(path, verify=verify)


def _holds_data(folder: Path) -> bool:
    from storage.data import format_by_name

    return any(format_by_name(entry.name) or ("=" in entry.name and entry.is_dir()) for entry in folder.iterdir())


def _data_view(path: Path | str, data_config: Path | None) -> View:
    from storage.data import DataRows, described

    rows = DataRows.open(path, None, data_options(data_config))
    first = rows.range(0, 1).read().to_pylist()[0] if rows.rows else {}
    title = f"{described(path)[0]}: {rows.rows:,} rows"
    columns = FittedTable(wrapping("column"), wrapping("type"), wrapping("first row"), title=title)
    partitions = [key for key, _ in rows.blocks[0].file.partition] if rows.blocks else []
    kinds = {field.name: str(field.type) for field in rows.schema}
    found = []
    for name in sorted(kinds, key=lambda name: name not in partitions):
        own = rows.blocks[0].own.names if rows.blocks else [name]
        kind = kinds[name] if name in own else "partition"
        shown = str(first.get(name))[:60] if first else ""
        columns.add_row(name, kind, shown)
        found.append({"name": name, "type": kind, "first": shown})
    return View({"kind": "data", "path": str(path), "rows": rows.rows, "columns": found}, [columns])
