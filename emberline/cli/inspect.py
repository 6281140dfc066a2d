"""`emberline inspect`: what lies in a version, a model, a repository or a Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from storage.errors import CheckpointError, NotFound

if TYPE_CHECKING:
    from storage import PublishedVersion

MANIFEST = "manifest.json"


@click.command(
    name="inspect",
    epilog="""\b
Examples:
  emberline inspect build/models                  all models and versions
  emberline inspect build/models/movielens/1      one version, every digest checked
  emberline inspect build/movielens/train.parquet""",
)
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--hottest", type=click.IntRange(0, 1000), default=5, help="Most used ids to list for each table of a version."
)
@click.option("--no-verify", is_flag=True, help="Do not compute digests (names and sizes are still checked).")
def command(path: Path, hottest: int, no_verify: bool) -> None:
    """Show what PATH holds: a repository, a model, a version, or Parquet data."""
    console = Console(highlight=False, soft_wrap=True)
    if (path / MANIFEST).is_file() or (path.is_dir() and path.name.isdecimal()):
        _version(console, path, hottest, verify=not no_verify)
    elif path.suffix == ".parquet" or (path.is_dir() and any(path.glob("*.parquet"))):
        _parquet(console, path)
    elif path.is_dir():
        _repository(console, path, verify=not no_verify)
    else:
        raise NotFound(f"{path}: expected a repository, a model, a version folder or Parquet data")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="right" if name in {"rows", "dim", "MiB", "bytes"} else "left")
    return table


def _version(console: Console, path: Path, hottest: int, *, verify: bool) -> None:
    from storage import open_version

    version = open_version(path, verify=verify)
    manifest = version.manifest
    total = sum(entry.size for entry in manifest.files)
    checked = "every digest holds" if verify else "digests not checked"
    head = f"version {manifest.version}, snapshot {manifest.snapshot}"
    console.print(f"{head}: {len(manifest.files)} files, {total:,} bytes, {checked}")
    tables = _table("tables", "name", "rows", "dim", "MiB", "hottest ids (frequency 0 to 255)")
    for entry in version.tables:
        hot = ", ".join(f"{number} ({freq})" for freq, number in _hottest(version, entry.name, hottest))
        tables.add_row(
            entry.name, f"{entry.rows:,}", str(entry.dim), f"{entry.rows * (4 * entry.dim + 9) / 2**20:.1f}", hot
        )
    console.print(tables)
    inputs = _table("inputs of a request", "name", "type", "shape", "")
    for wire in version.spec.wire_inputs():
        inputs.add_row(wire.name, wire.dtype, str([-1, *wire.dims]), "optional" if wire.optional else "")
    console.print(inputs)
    graph = _table("dense graph", "name", "kind", "source", "shape")
    for given in manifest.graph.inputs:
        graph.add_row(given.name, given.kind, given.source, str(list(given.shape)))
    for output in manifest.graph.outputs:
        graph.add_row(output.name, "output", "", str(list(output.shape)))
    console.print(graph)
    golden = version.golden()
    console.print(f"golden requests: {golden.batch} rows, tolerance {golden.tolerance:g}")


def _hottest(version: PublishedVersion, table: str, count: int) -> list[tuple[int, int]]:
    import heapq

    import numpy as np

    found: list[tuple[int, int]] = []
    for shard in version.shards(table):
        best = np.argsort(-shard.freq.astype(np.int64), kind="stable")[:count]
        found.extend((int(shard.freq[i]), int(shard.ids[i])) for i in best)
        found = heapq.nlargest(count, found, key=lambda pair: pair[0])
    return found


def _repository(console: Console, path: Path, *, verify: bool) -> None:
    from storage import open_version

    folders = [path] if any(child.name.isdecimal() for child in path.iterdir()) else sorted(path.iterdir())
    models = _table(f"models in {path}", "model", "version", "rows", "MiB", "state")
    count = 0
    for model in (folder for folder in folders if folder.is_dir() and not folder.name.startswith(".")):
        for number in sorted(int(child.name) for child in model.iterdir() if child.name.isdecimal()):
            count += 1
            try:
                version = open_version(model / str(number), verify=verify)
            except CheckpointError as error:
                models.add_row(model.name, str(number), "", "", f"refused: {error}")
                continue
            size = sum(entry.size for entry in version.manifest.files) / 2**20
            rows = sum(entry.rows for entry in version.tables)
            models.add_row(
                model.name, str(number), f"{rows:,}", f"{size:.1f}", "every digest holds" if verify else "not checked"
            )
    if count == 0:
        raise NotFound(f"{path}: holds no published version (folders NAME/NUMBER with a {MANIFEST})")
    console.print(models)


def _parquet(console: Console, path: Path) -> None:
    import pyarrow.dataset
    import pyarrow.lib

    try:
        dataset = pyarrow.dataset.dataset(path, format="parquet")
        rows, first = dataset.count_rows(), dataset.head(1).to_pylist()
    except (pyarrow.lib.ArrowException, OSError) as error:
        raise CheckpointError(f"{path}: not readable as Parquet: {error}") from None
    columns = _table(f"{path}: {rows:,} rows", "column", "type", "first row")
    for field in dataset.schema:
        columns.add_row(field.name, str(field.type), str(first[0][field.name])[:60] if first else "")
    console.print(columns)
