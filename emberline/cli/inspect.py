"""`emberline inspect`: shows what a run, a version, a delta, a model, a repository or a file of rows holds."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from emberline.cli.command import Command, DataArgument, LocalPath
from emberline.cli.console import table_console
from emberline.cli.data_options import DATA_CONFIG, data_options
from emberline.cli.inspect_tables import TableOptions, analyse, show_run
from emberline.cli.objects import copy_of, is_published, show_objects
from emberline.cli.row_types import rounding_lines
from storage.errors import CheckpointError, NotFound, ReadError
from storage.paths import local_path

if TYPE_CHECKING:
    from storage import PublishedDelta, PublishedVersion, TableSpec
    from storage.checkpoint import Shard

MANIFEST = "manifest.json"
_FILE = LocalPath(dir_okay=False)
NUMBERS = {"rows", "removed", "dim", "MiB", "saved", "bytes", "version", "delta", "deltas", "changes since"}


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
    "--json", "json_file", type=_FILE, metavar="FILE", help="Write the analysis as JSON; - prints it instead."
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
@click.option("--quiet", is_flag=True, help="No progress bars.")
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
    console = table_console()
    if isinstance(path, str) and is_published(path):
        found = copy_of(path) if options.wanted else show_objects(console, path)
        if found is None:
            return
        path = found
    if options.wanted:
        analyse(console, local_path(path, "PATH"), options)
    elif isinstance(path, str):
        _data(console, path, data_config)
    else:
        _show(console, path, data_config, hottest, verify=not no_verify, quiet=quiet)


def _show(console: Console, path: Path, data_config: Path | None, hottest: int, *, verify: bool, quiet: bool) -> None:
    if _is_delta(path):
        _delta(console, path, hottest, verify=verify)
    elif (path / MANIFEST).is_file() or (path.is_dir() and path.name.isdecimal()):
        _version(console, path, hottest, verify=verify)
    elif path.is_dir() and path.name == "deltas" and (path.parent / MANIFEST).is_file():
        _version(console, path.parent, hottest, verify=verify)
    elif path.is_file() or _holds_data(path):
        _data(console, path, data_config)
    elif (path / "checkpoints").is_dir() or (path / "state.json").is_file():
        show_run(console, path, verify, quiet)
    else:
        _repository(console, path, verify=verify)


def _holds_data(folder: Path) -> bool:
    from storage.data import format_by_name

    return any(format_by_name(entry.name) or ("=" in entry.name and entry.is_dir()) for entry in folder.iterdir())


def _is_delta(path: Path) -> bool:
    # The manifest decides, not the folder's place: a copy, or a server's own link, lies anywhere.
    from storage.checkpoint.delta_manifest import DELTA_FORMAT
    from storage.checkpoint.signed import MAX_MANIFEST_BYTES

    if not (path / MANIFEST).is_file():
        return False
    with (path / MANIFEST).open("rb") as file:
        return f'"format":"{DELTA_FORMAT}"'.encode() in file.read(MAX_MANIFEST_BYTES)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="right" if name in NUMBERS else "left")
    return table


def _version(console: Console, path: Path, hottest: int, *, verify: bool) -> None:
    from storage import open_version

    version = open_version(path, verify=verify)
    manifest = version.manifest
    total = sum(entry.size for entry in manifest.files)
    head = f"version {manifest.version}, snapshot {manifest.snapshot}"
    if manifest.equals is not None:
        head += f" (equal to {manifest.equals})"
    console.print(f"{head}: {len(manifest.files)} files, {total:,} bytes, {_state(verify)}")
    names = ("name", "kind", "rows", "dim", "row type", "MiB", "saved", "hottest ids (frequency 0 to 255)")
    tables = _table("tables", *names)
    for entry, made in zip(version.tables, manifest.tables, strict=True):
        hot = _hottest(version.shards(entry.name), hottest)
        size = f"{entry.rows * (entry.row_bytes + 9) / 2**20:.1f}"
        row = (entry.name, str(made.kind), f"{entry.rows:,}", str(entry.dim), entry.row_type, size, _saved(entry), hot)
        tables.add_row(*row)
    console.print(tables)
    for line in rounding_lines(manifest.metadata):
        console.print(line)
    inputs = _table("inputs of a request", "name", "type", "shape", "")
    for wire in version.spec.wire_inputs():
        inputs.add_row(wire.name, wire.dtype, str([-1, *wire.dims]), "optional" if wire.optional else "")
    console.print(inputs)
    for feature in version.spec.ids_features:
        if feature.fallback:
            chain = ", then ".join(feature.fallback)
            console.print(f"ids of {feature.name} without a row read that of {chain}", markup=False)
    graph = _table("dense graph", "name", "kind", "source", "shape")
    for given in manifest.graph.inputs:
        graph.add_row(given.name, given.kind, given.source, str(list(given.shape)))
    for output in manifest.graph.outputs:
        graph.add_row(output.name, "output", "", str(list(output.shape)))
    console.print(graph)
    golden = version.golden()
    console.print(f"golden requests: {golden.batch} rows, tolerance {golden.tolerance:g}")
    _deltas(console, version, verify=verify)


def _deltas(console: Console, version: PublishedVersion, *, verify: bool) -> None:
    from storage import list_deltas, open_delta
    from storage.checkpoint.deltas import DELTAS, sequence_name

    sequences = list_deltas(version.path)
    if not sequences:
        return
    shown = _table("deltas", "delta", "snapshot", "parent", "changes since", "rows", "removed", "bytes", "state")
    for sequence in sequences:
        name = f"{version.version}.{sequence}"
        try:
            delta = open_delta(version.path / DELTAS / sequence_name(sequence), verify=verify)
        except (CheckpointError, NotFound, ReadError) as error:
            shown.add_row(name, "", "", "", "", "", "", _problem(error))
            continue
        manifest = delta.manifest
        shown.add_row(
            name,
            delta.snapshot,
            delta.parent,
            f"{version.version}.{manifest.from_sequence}",
            f"{sum(entry.rows for entry in manifest.tables):,}",
            f"{sum(entry.removed for entry in manifest.tables):,}",
            f"{delta.size_bytes:,}",
            _state(verify),
        )
    console.print(shown)


def _delta(console: Console, path: Path, hottest: int, *, verify: bool) -> None:
    from storage import open_delta

    delta = open_delta(path, verify=verify)
    manifest = delta.manifest
    name = f"{manifest.version}.{manifest.sequence}"
    created = datetime.fromtimestamp(manifest.created_unix_ms / 1000, UTC).isoformat(" ", "seconds")
    console.print(f"delta {name}, snapshot {delta.snapshot}: {delta.size_bytes:,} bytes, {_state(verify)}")
    console.print(f"made {created}; holds all changes after {manifest.version}.{manifest.from_sequence}")
    console.print(f"goes on from the snapshot {delta.parent}")
    others = [snapshot for snapshot in delta.applies_to if snapshot != delta.parent]
    if others:
        console.print(f"applies to {len(others)} more: {', '.join(others[:4])}{', ...' if others[4:] else ''}")
    tables = _table(
        "tables", "name", "rows", "removed", "dim", "row type", "hottest ids (frequency 0 to 255)", "fingerprint"
    )
    for entry in manifest.tables:
        hot = _hottest(delta.shards(entry.name), hottest)
        counts = (f"{entry.rows:,}", f"{entry.removed:,}", str(entry.dim))
        tables.add_row(entry.name, *counts, entry.row_type, hot, entry.fingerprint)
    console.print(tables)
    for line in rounding_lines(manifest.metadata):
        console.print(line)
    console.print(f"dense weights: {_dense(delta)}, fingerprint {manifest.dense_fingerprint}")
    console.print(f"golden requests: {manifest.golden.batch} rows, tolerance {manifest.golden.tolerance:g}")


def _dense(delta: PublishedDelta) -> str:
    """Returns what a delta holds of the dense weights."""
    dense = delta.manifest.dense
    if dense is None:
        return f"all {len(delta.weights())} tensors"
    size = next(entry.size for entry in delta.manifest.files if entry.path.startswith("dense."))
    return f"{len(delta.changed_weights())} tensors as a difference of {size:,} bytes to {dense.against}"


def _saved(table: TableSpec) -> str:
    """Returns the bytes that a table's rows save against fp32."""
    less = table.rows * (4 * table.dim - table.row_bytes)
    return f"{less / 2**20:.1f} MiB ({1 - table.row_bytes / (4 * table.dim):.0%})" if less else ""


def _problem(error: Exception) -> str:
    return str(error) if isinstance(error, ReadError) else f"refused: {error}"


def _state(verify: bool) -> str:
    return "every digest holds" if verify else "digests not checked"


def _hottest(shards: Iterable[Shard], count: int) -> str:
    import heapq

    import numpy as np

    found: list[tuple[int, int]] = []
    for shard in shards:
        best = np.argsort(-shard.freq.astype(np.int64), kind="stable")[:count]
        found.extend((int(shard.freq[i]), int(shard.ids[i])) for i in best)
        found = heapq.nlargest(count, found, key=lambda pair: pair[0])
    return ", ".join(f"{number} ({freq})" for freq, number in found)


def _repository(console: Console, path: Path, *, verify: bool) -> None:
    from storage import list_deltas, open_version

    folders = [path] if any(child.name.isdecimal() for child in path.iterdir()) else sorted(path.iterdir())
    models = _table(f"models in {path}", "model", "version", "rows", "MiB", "deltas", "state")
    count = 0
    for model in (folder for folder in folders if folder.is_dir() and not folder.name.startswith(".")):
        for number in sorted(int(child.name) for child in model.iterdir() if child.name.isdecimal()):
            count += 1
            try:
                version = open_version(model / str(number), verify=verify)
            except (CheckpointError, NotFound, ReadError) as error:
                models.add_row(model.name, str(number), "", "", "", _problem(error))
                continue
            size = sum(entry.size for entry in version.manifest.files) / 2**20
            rows = sum(entry.rows for entry in version.tables)
            deltas = str(len(list_deltas(version.path)))
            models.add_row(model.name, str(number), f"{rows:,}", f"{size:.1f}", deltas, _state(verify))
    if count == 0:
        raise NotFound(f"{path}: holds no published version (folders NAME/NUMBER with a {MANIFEST})")
    console.print(models)


def _data(console: Console, path: Path | str, data_config: Path | None) -> None:
    from storage.data import DataRows, described

    rows = DataRows.open(path, None, data_options(data_config))
    first = rows.range(0, 1).read().to_pylist()[0] if rows.rows else {}
    columns = _table(f"{described(path)[0]}: {rows.rows:,} rows", "column", "type", "first row")
    partitions = [key for key, _ in rows.blocks[0].file.partition] if rows.blocks else []
    kinds = {field.name: str(field.type) for field in rows.schema}
    for name in sorted(kinds, key=lambda name: name not in partitions):
        own = rows.blocks[0].own.names if rows.blocks else [name]
        kind = kinds[name] if name in own else "partition"
        columns.add_row(name, kind, str(first.get(name))[:60] if first else "")
    console.print(columns)
