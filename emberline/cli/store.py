"""`emberline store`: shows what lies in a store's folder, checks it, and drops what is broken.

A store holds only copies of a published version: what is broken is dropped, and the next start fills it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import Progress

from emberline.cli.command import Group, LocalPath
from emberline.cli.console import JSON, print_json, table_console
from emberline.fitted_table import FittedTable, wrapping
from emberline.terminal import progress_console
from storage.errors import NotFound, StoreError

if TYPE_CHECKING:
    from storage.tiers.ssd.health import StoreReport

_MIB = 1 << 20
# Levels below PATH that are searched for stores: `emberline serve --store PATH` keeps them in PATH/MODEL/VERSION.
_DEPTH = 2
_PATH = click.argument("path", type=LocalPath(exists=True, file_okay=False))

# Called with pages read, pages in all.
Advance = Callable[[int, int], None]


@click.group(
    cls=Group,
    name="store",
    epilog="""\b
Examples:
  emberline store show build/store                   every store of a server
  emberline store verify build/store/movielens/1     one store, read from end to end
  emberline store repair build/store/movielens/1""",
)
def command() -> None:
    """Look into the stores that a server keeps on the disk, check them, mend them.

    PATH is a store's folder, or one above it: a model's, or what `emberline serve --store` names. A server that has a
    store open must be stopped first.
    """


@command.command()
@_PATH
@JSON
def show(path: Path, as_json: bool) -> None:
    """Show the tables of the stores in PATH: rows, bytes, changes that are not compacted, snapshot.

    Rows are those of a table's page file; changes are rows that deltas wrote or removed since it was written.
    """
    from storage.tiers.ssd.health import describe_store

    reports = [describe_store(folder) for folder in stores_in(path)]
    if as_json:
        print_json(_document(reports))
        return
    console = table_console()
    for report in reports:
        print_report(console, report)


@command.command()
@_PATH
@JSON
def verify(path: Path, as_json: bool) -> None:
    """Read everything in the stores in PATH and say what is wrong.

    Exit code 1 when anything is. Nothing is changed.
    """
    from storage.tiers.ssd.health import verify_store

    console, reports = table_console(), []
    for folder in stores_in(path):
        with _advance(folder) as advance:
            report = verify_store(folder, advance)
        reports.append(report)
        if not as_json:
            print_report(console, report)
            print_problems(console, report)
    if as_json:
        print_json(_document(reports))
    broken = sum(not report.ok for report in reports)
    if broken:
        raise StoreError(f"{path}: {broken} broken; `emberline store repair` drops what is, to be filled again")
    if not as_json:
        console.print("everything was read, nothing is wrong")


@command.command()
@_PATH
@JSON
def repair(path: Path, as_json: bool) -> None:
    """Check the stores in PATH as `verify` does, and drop each table that is broken.

    The server fills a dropped table again from its published version when it starts, and applies the deltas of that
    version again. Sound tables and sound stores are left as they are.
    """
    from serving.updates.store_lock import LOCK, locked
    from storage.tiers.ssd.health import repair_store

    console, reports = table_console(), []
    for folder in stores_in(path):
        with locked(folder.parent) if (folder.parent / LOCK).exists() else nullcontext(), _advance(folder) as advance:
            report = repair_store(folder, advance)
        reports.append(report)
        if as_json:
            continue
        print_problems(console, report)
        if not report.dropped:
            console.print(f"{folder}: nothing is wrong")
            continue
        console.print(
            f"{folder}: dropped {', '.join(report.dropped)}; the next start fills that from the published version"
            + (f" (the store was at snapshot {report.at})" if report.at else "")
        )
    if as_json:
        print_json(_document(reports))


def stores_in(path: Path) -> list[Path]:
    """Returns the folders of stores at a path and below, by name. Raises NotFound when there is none."""
    level, found = [path], []
    for _ in range(_DEPTH + 1):
        found += [folder for folder in level if (folder / "rocksdb").is_dir()]
        level = [
            entry
            for folder in level
            if folder not in found
            for entry in sorted(folder.iterdir())
            if entry.is_dir() and not entry.is_symlink()
        ]
    if not found:
        raise NotFound(
            f"{path}: no store in this folder; `emberline serve --store FOLDER` keeps them in FOLDER/MODEL/VERSION"
        )
    return sorted(found)


def _document(reports: Iterable[StoreReport]) -> dict[str, Any]:
    return {"stores": [{**asdict(report), "ok": report.ok} for report in reports]}


def print_report(console: Console, report: StoreReport) -> None:
    """Prints a store's tables."""
    at = report.at or "none: it will be filled from its version"
    title = f"{report.path}: {report.bytes / _MIB:,.1f} MiB, snapshot {at}"
    names = ("number", "rows", "pages", "MiB", "changes")
    table = FittedTable(wrapping("table"), *names, wrapping("state"), title=title)
    for entry in report.tables:
        table.add_row(
            entry.name,
            str(entry.number),
            f"{entry.rows:,}",
            f"{entry.pages:,}",
            f"{entry.bytes / _MIB:,.1f}",
            f"{entry.changes:,}",
            "broken" if entry.problems else "",
        )
    console.print(table)


def print_problems(console: Console, report: StoreReport) -> None:
    """Prints what is wrong with a store, a line each."""
    for problem in report.problems:
        console.print(f"broken: {problem}")
    for entry in report.tables:
        for problem in entry.problems:
            console.print(f"broken: table {entry.name or entry.number}: {problem}")


@contextmanager
def _advance(folder: Path) -> Iterator[Advance]:
    """Shows a bar on standard error for the block, where that is a terminal."""
    console = progress_console()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(str(folder), total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
