"""Commands that write a file: they check its place, and show how far they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from emberline.terminal import progress_console
from storage.errors import InvalidInput

QUIET = click.option("--quiet", is_flag=True, help="No progress bars, which only terminals show.")


def check_target(target: Path, overwrite: bool) -> None:
    """Raises InvalidInput when OUT is named as a file of another format than Parquet, has no folder, or is there and is
    not to be replaced.
    """
    from storage.data.files import FORMAT_TITLES, format_by_name

    other = format_by_name(target.name) or "parquet"
    if other != "parquet":
        raise InvalidInput(
            f"OUT {target}: what is written is Parquet, and {target.suffix} means {FORMAT_TITLES[other]}; expected a "
            f"name such as {target.name.partition('.')[0]}.parquet",
            field="OUT",
        )
    check_folder("OUT", target)
    if target.exists() and not overwrite:
        raise InvalidInput(f"OUT {target} is there already; --overwrite replaces it", field="OUT")


def check_folder(option: str, path: Path | None) -> None:
    """Raises InvalidInput where there is no folder for the file of an option, before anything is computed for it."""
    if path is not None and not path.absolute().parent.is_dir():
        raise InvalidInput(f"{option} {path}: there is no folder {path.parent}", field=option)


@contextmanager
def bars(quiet: bool) -> Iterator[Progress]:
    """Shows progress bars on standard error while the context is open, where that is a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = progress_console()
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as progress:
        yield progress


def counting(bars: Progress, what: str) -> Callable[[int, int], None]:
    """Returns a function that shows how much is done of how much, in a bar that begins with its first call."""
    tasks: list[Any] = []

    def report(done: int, total: int) -> None:
        if not tasks:
            tasks.append(bars.add_task(what, total=total))
        bars.update(tasks[0], completed=done, total=total)

    return report
