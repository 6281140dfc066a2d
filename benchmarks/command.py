"""`python -m benchmarks`: the benchmarks of store and engine by name."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks import catalog
from emberline.cli.command import Command, LocalPath
from emberline.cli.frame import fail, run_command

ROOT = Path(__file__).parents[1]
NAME = "python -m benchmarks"


@click.command(cls=Command, name=NAME, no_args_is_help=True)
@click.argument("name", required=False)
@click.option("--list", "list_them", is_flag=True, help="One line for each benchmark.")
@click.option("--quick", is_flag=True, help="Rough figures on small tables, in about 30 seconds.")
@click.option("--json", type=LocalPath(dir_okay=False), help="Write the rows here.")
@click.option("--plot", type=LocalPath(dir_okay=False), help="Draw the ratios (.png, .svg, .pdf).")
@click.option("--rows", type=int, help="Rows of the largest table.  [default: the benchmark's own]")
@click.option("--repeats", type=int, default=7, help="Undisturbed repeats of each measurement.")
@click.option("--max-seconds", type=float, help="Begin nothing new after so long; what is left out is said.")
@click.option("--only", default="", help="Measure these parts, such as http,grpc.  [default: all]")
@click.option(
    "--data", type=LocalPath(exists=True), help="Measure on this data set: films.  [default: the benchmark's own]"
)
@click.option(
    "--work",
    type=LocalPath(exists=True, file_okay=False),
    help="Put temporary stores under this folder; it must be on the disk to measure.  [default: build/]",
)
def command(
    name: str | None,
    list_them: bool,
    quick: bool,
    json: Path | None,
    plot: Path | None,
    rows: int | None,
    repeats: int,
    max_seconds: float | None,
    only: str,
    data: Path | None,
    work: Path | None,
) -> None:
    """Measure the store beside the machine's limits and its peers, side by side in one run.

    Every row is a claim: our figure, the other's, the ratio, and the target it must reach. A full run fails when a
    target is missed. Ctrl-C prints what is measured so far.

    \b
    Example:
      python -m benchmarks --list
      python -m benchmarks lookup --quick
      python -m benchmarks tiered --json tiered.json --plot tiered.png
      python -m benchmarks triton --only http,grpc
    """
    if list_them:
        click.echo("\n".join(catalog.list_lines()))
        return
    if name is None:
        raise click.UsageError("Give a NAME, or --list.")
    if name not in catalog.BENCHMARKS:
        raise click.UsageError(catalog.wrong_name(name))
    parts = tuple(part for part in only.split(",") if part)
    options = catalog.Options(
        quick=quick, json=json, plot=plot, rows=rows, repeats=repeats, max_s=max_seconds, only=parts, data=data
    )

    from rich.console import Console

    # In a file or a pipe, wide enough for a claim to fit on one line.
    console = Console() if sys.stdout.isatty() else Console(width=170)
    place = work or ROOT / "build"
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=place) as folder:
        report = catalog.run(name, options, console, Path(folder))
    if report.interrupted:
        fail("interrupted; the rows above are complete", 130)
    if report.missed and not quick:
        sys.exit(1)


def script(name: str, arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark `name`: `python -m benchmarks.NAME` is `python -m benchmarks NAME`."""
    run_command(command, [name, *(sys.argv[1:] if arguments is None else arguments)], NAME)
