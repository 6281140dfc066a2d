"""`emberline inspect --table` and `--tables`: analyses embedding tables of a run or a published version."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from emberline.cli.console import print_json
from emberline.cli.data_options import data_options
from emberline.cli.target import check_folder
from emberline.cli.view import View
from emberline.fitted_table import FittedTable, whole, wrapping
from emberline.terminal import progress_console
from storage.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    from emberline.inspection.document import TableAnalysis
    from emberline.inspection.source import Origin, TableSource


@dataclass(frozen=True)
class TableOptions:
    """Says what to analyse, and where the results go."""

    #: Names of the tables.
    names: tuple[str, ...]
    #: True for all tables.
    every: bool
    json: Path | None
    parquet: Path | None
    html: Path | None
    data: tuple[Path | str, ...]
    data_config: Path | None
    data_rows: int
    near_zero: float
    hottest: int
    sample: int
    verify: bool
    overwrite: bool
    quiet: bool

    @property
    def wanted(self) -> bool:
        """Returns whether tables are to be analysed at all."""
        return self.every or bool(self.names)

    @property
    def targets(self) -> dict[str, Path]:
        """The files to write, by option."""
        given = {"--json": self.json, "--parquet": self.parquet, "--html": self.html}
        return {option: path for option, path in given.items() if path is not None}

    def check(self) -> None:
        """Raises click.UsageError for options that do not go together, InvalidInput for a file that cannot be made."""
        if not self.wanted:
            others = [option for option in self.targets if option != "--json"] + (["--data"] if self.data else [])
            if others:
                raise click.UsageError(
                    f"{others[0]} belongs to an analysis of tables; give --table NAME or --tables too"
                )
        if self.every and self.names:
            raise click.UsageError("--tables is for all tables, and --table names some; give one of the two")
        if self.parquet is not None and len(set(self.names)) != 1:
            raise click.UsageError("--parquet writes one table; give its name with --table NAME, once")
        seen: dict[Path, str] = {}
        for option, path in self.targets.items():
            if _is_stdout(path):
                continue
            if (other := seen.setdefault(path.absolute(), option)) != option:
                raise click.UsageError(f"{option} and {other} name the same file, {path}")
            check_folder(option, path)
            if path.exists() and not self.overwrite:
                raise InvalidInput(f"{option} {path} is there already; --overwrite replaces it", field=option)


def analyse(console: Console, path: Path, options: TableOptions) -> None:
    """Analyses tables of a run or a published version, prints the results or writes them to files."""
    with _bars(options.quiet) as bars:
        origin = _open(path, options.verify, bars)
        sources = origin.chosen(options.names)
        tables = _analyses(origin, sources, options, bars)
        for option, target in options.targets.items():
            if option == "--parquet":
                _write_parquet(origin, sources[0], target, bars)
            elif not _is_stdout(target):
                _write_text(target, _text_of(option, origin, tables))
    if options.json is not None and _is_stdout(options.json):
        click.echo(_text_of("--json", origin, tables), nl=False)
        return
    from emberline.inspection.text import show

    show(console, origin, tables)
    for target in options.targets.values():
        console.print(f"wrote {target}")


def write_json(target: Path, document: Any) -> None:
    """Writes a JSON document to a file, or prints it where the target is "-"."""
    if _is_stdout(target):
        print_json(document)
    else:
        _write_text(target, json.dumps(document, indent=1) + "\n")


def run_view(path: Path, verify: bool, quiet: bool) -> View:
    """Describes what a training run holds, without reading its tables."""
    from trainer.rank_times import saved_ranks

    with _bars(quiet) as bars:
        origin = _open(path, verify, bars)
    ranks = [each.line() for each in saved_ranks(path / "report.json")]
    names = ("dim", whole("optimizer"), "values", "admit_after", "rows at most")
    shown = FittedTable(wrapping("name"), *names, title="tables")
    found = []
    for name, source in origin.tables.items():
        facts = source.facts
        shown.add_row(
            name, str(facts.dim), facts.optimizer, str(facts.slots), str(facts.admit_after), f"{source.total:,}"
        )
        own = {"optimizer": facts.optimizer, "values": facts.slots, "admit_after": facts.admit_after}
        found.append({"name": name, "dim": facts.dim, **own, "rows_at_most": source.total})
    document = {"kind": "run", "path": str(path), "title": origin.title, "ranks": ranks, "tables": found}
    hint = f"for an analysis of the tables: emberline inspect {path} --tables"
    return View(document, [origin.title, *ranks, shown, hint])


def _open(path: Path, verify: bool, bars: Progress) -> Origin:
    from emberline.inspection.run_source import is_run, open_run

    if is_run(path):
        task = bars.add_task("checking files", total=None)

        def checking(file: Path) -> None:
            bars.update(task, description=f"checking {file.name}")

        origin = open_run(path, verify=verify, checking=checking)
        bars.update(task, visible=False)
        return origin
    from emberline.inspection.published_source import open_published

    return open_published(path, verify=verify)


def _analyses(origin: Origin, sources: list[TableSource], options: TableOptions, bars: Progress) -> list[TableAnalysis]:
    from dataclasses import replace

    from emberline.inspection.collisions import hashed_features, measured_collisions
    from emberline.inspection.document import TableAnalysis
    from emberline.inspection.figures import gather_figures

    measured = {}
    if options.data:
        names, layout = [source.facts.name for source in sources], data_options(options.data_config)
        measured = measured_collisions(origin.spec, names, options.data, options.data_rows, layout)
        if not measured:
            raise ConfigError(
                "--data measures collisions, and no feature of these tables hashes into buckets", field="--data"
            )
    found: list[TableAnalysis] = []
    for source in sources:
        figures = gather_figures(
            source,
            near_zero=options.near_zero,
            hottest=options.hottest,
            sample=options.sample,
            progress=_counting(bars, f"reading {source.facts.name}"),
        )
        hashed = hashed_features(origin.spec, figures)
        hashed = [replace(feature, measured=measured.get(feature.feature)) for feature in hashed]
        found.append(TableAnalysis(figures, tuple(hashed)))
    return found


def _text_of(option: str, origin: Origin, tables: list[TableAnalysis]) -> str:
    if option == "--html":
        from emberline.inspection.page import to_html

        return to_html(origin, tables)
    from emberline.inspection.document import to_json_value

    return json.dumps(to_json_value(origin, tables), indent=1, allow_nan=False) + "\n"


def _write_text(target: Path, text: str) -> None:
    unfinished = target.with_name(target.name + ".part")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_parquet(origin: Origin, source: TableSource, target: Path, bars: Progress) -> None:
    from emberline.inspection.parquet import write_parquet

    write_parquet(source, target, origin.title, _counting(bars, f"writing {target.name}"))


def _is_stdout(path: Path) -> bool:
    return str(path) == "-"


@contextmanager
def _bars(quiet: bool) -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = progress_console()
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        yield progress


def _counting(bars: Progress, what: str) -> Any:
    task = bars.add_task(what, total=None)

    def report(done: int, total: int) -> None:
        bars.update(task, completed=done, total=total)

    return report
