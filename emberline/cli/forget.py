"""`emberline forget`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.progress import Progress

from emberline.cli.command import Command, LocalPath, Repository
from emberline.cli.forget_report import ForgetReport
from emberline.cli.forget_servers import ServerFindings, wait_for_server
from emberline.cli.server_call import IDENTITY
from emberline.cli.target import bars
from storage.errors import ConfigError
from storage.objects import is_url

if TYPE_CHECKING:
    from storage.forgetting import Needles, Place, Wanted
    from trainer.config import TrainConfig
    from trainer.forgetting import Forgotten

_LOOK_S = 0.5


@click.command(
    cls=Command,
    name="forget",
    epilog="""\b
Examples:
  emberline forget build/run --repository build/models --table users --ids ids.txt --dry-run
  emberline forget build/run --repository build/models --input user_id --ids users.csv
  emberline forget build/run --repository s3://bucket/models --input user_id --ids users.parquet --column account \\
      --url http://server-1:8000 --url http://server-2:8000 --search /var/lib/emberline --search /var/log/emberline""",
)
@click.argument("run", type=LocalPath(exists=True, file_okay=False))
@click.option(
    "--repository",
    type=Repository(),
    required=True,
    help="Model repository that RUN was published into, a folder or a URL such as s3://bucket/models.",
)
@click.option(
    "--ids",
    "file",
    type=LocalPath(exists=True, dir_okay=False),
    required=True,
    help="What to forget: text with a value a line, or CSV, Parquet and other files with a column of values.",
)
@click.option("--column", help="The column of --ids; needed where it has several.")
@click.option("--table", "tables", multiple=True, help="Table that has the ids; may be given several times.")
@click.option("--input", "input_name", help="Raw input that --ids are values of, of which the features make ids.")
@click.option(
    "--url", "urls", multiple=True, help="A server to wait for and to ask for the ids; may be given several times."
)
@click.option(
    "--search",
    "folders",
    type=LocalPath(exists=True),
    multiple=True,
    help="Another folder of this machine to search, such as the stores of servers or logs; may be given several times.",
)
@click.option(
    "--within",
    type=click.FloatRange(0),
    default=600.0,
    show_default=True,
    help="Seconds in which servers, and their stores in --search, have to let go.",
)
@click.option("--dry-run", is_flag=True, help="Say where the ids are found, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", is_flag=True, help="No progress bars.")
@IDENTITY
def command(
    run: Path,
    repository: Path | str,
    file: Path,
    column: str | None,
    tables: tuple[str, ...],
    input_name: str | None,
    urls: tuple[str, ...],
    folders: tuple[Path, ...],
    within: float,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Forget ids in the training output RUN and in the repository, and prove it by reading every file.

    Their rows, optimizer values and counts leave the tables. A delta removes them from servers, and a version behind it
    replaces every older snapshot, which are removed, as are all other commits of RUN: neither a server nor the trainer
    can go back to them. Raw requests that lead to the ids leave the golden requests and what waits for its label.
    Servers fill a new store from that version and delete the old one.

    The same call again finishes one that was stopped. Training data is not changed: remove the rows there before, or
    training on them again makes new rows of the ids. Exit code 1 when something is left.
    """
    from storage.forgetting import Needles
    from trainer.forgetting import check_tables
    from trainer.trained import read_run

    config, _ = read_run(run)
    wanted = _wanted(config, file, column, tables, input_name)
    check_tables(config, wanted)
    needles = Needles()
    for ids in wanted.tables.values():
        for number in ids.tolist():
            needles.add_id(number)
    for values in wanted.values.values():
        for value in values:
            if isinstance(value, bytes):
                needles.add(value, "bytes of values")
    own = [run, *_models(repository, config)]
    report = ForgetReport(ids={name: len(ids) for name, ids in wanted.tables.items()}, shared=dict(wanted.shared))
    with bars(quiet or as_json) as progress:
        search = _Search([*own, *folders], wanted, config, needles, progress)
        report.found = search.places("searching")
        if not dry_run:
            report.seconds = time.monotonic()
            is_there = any(_is_under(place.path, own) for place in report.found)
            if is_there or is_url(repository):
                report.done = _forget(run, repository, wanted, quiet=quiet or as_json)
            report.servers = _servers(run, config, wanted, urls, time.monotonic() + within)
            report.left = search.places_after(folders if urls else (), time.monotonic() + within)
            report.seconds = time.monotonic() - report.seconds
            report.files, report.bytes = search.files, search.bytes
    report.show(as_json=as_json, dry_run=dry_run)
    if not dry_run and not report.is_clean:
        raise click.exceptions.Exit(1)


class _Search:
    """Reads every file of some folders, and counts what it read."""

    def __init__(
        self, roots: Sequence[Path], wanted: Wanted, config: TrainConfig, needles: Needles, progress: Progress
    ) -> None:
        self._roots, self._wanted, self._config = roots, wanted, config
        self._needles, self._progress = needles, progress
        self.files = self.bytes = 0

    def places(self, what: str, roots: Sequence[Path] | None = None) -> list[Place]:
        """Returns where something of the ids is found. roots: default: all folders."""
        from storage.forgetting import find_places
        from storage.forgetting.places import files_under

        roots = self._roots if roots is None else roots
        files = [path for root in roots for path in files_under(root)]
        total = sum(path.stat().st_size for path in files if path.exists())
        task = self._progress.add_task(what, total=total)
        found = find_places(
            roots, self._wanted, self._config.spec, self._needles, lambda count: self._progress.advance(task, count)
        )
        self.files, self.bytes = len(files), total
        return found

    def places_after(self, waited: Sequence[Path], until: float) -> list[Place]:
        """Returns what is left. waited: folders of servers, which may be deleting it."""
        found = self.places("searching again")
        while found and waited and time.monotonic() < until and all(_is_under(each.path, waited) for each in found):
            time.sleep(_LOOK_S)
            found = self.places("searching again")
        return found


def _wanted(
    config: TrainConfig, file: Path, column: str | None, tables: tuple[str, ...], input_name: str | None
) -> Wanted:
    if bool(tables) == (input_name is not None):
        raise ConfigError(
            "give either --table, where --ids are ids of its rows, or --input, where they are raw values", field="table"
        )
    from emberline.cli.id_files import read_values, whole_numbers
    from storage.forgetting import Wanted, wanted_values

    values = read_values(file, column)
    if input_name is not None:
        return wanted_values(config.spec, input_name, values)
    ids = whole_numbers(file, values)
    return Wanted.of_ids(dict.fromkeys(tables, ids))


def _models(repository: Path | str, config: TrainConfig) -> list[Path]:
    """Returns the folder of the model on this machine: that of the repository, or the copy of one in a bucket."""
    from trainer.publishing.target import Target

    folder = Target.of(repository, config.model_name).model_dir
    return [folder] if folder.is_dir() else []


def _forget(run: Path, repository: Path | str, wanted: Wanted, *, quiet: bool) -> Forgotten:
    from trainer.forgetting import forget
    from trainer.trained import load_trained

    def say(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    return forget(load_trained(run), repository, wanted, progress=not quiet, say=say)


def _servers(run: Path, config: TrainConfig, wanted: Wanted, urls: Sequence[str], until: float) -> list[ServerFindings]:
    if not urls:
        return []
    from trainer.checkpoint import checkpoints, read_commit
    from trainer.publication import lineage_of

    lineage = lineage_of(read_commit(checkpoints(run)[-1]).state)
    version = 0 if lineage is None else lineage.version
    return [wait_for_server(url, config.model_name, version, wanted, until) for url in urls]


def _is_under(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
