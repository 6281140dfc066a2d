"""`emberline forget`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.progress import Progress

from emberline.cli.command import Command, LocalPath, Repository, WrongUsageError
from emberline.cli.console import JSON
from emberline.cli.forget_report import ForgetReport
from emberline.cli.forget_servers import wait_for_server
from emberline.cli.forget_subjects import ModelSubject, RunSubject, Subject
from emberline.cli.names import complete_in_repository
from emberline.cli.server_call import IDENTITY, check_url
from emberline.cli.target import QUIET, bars
from storage.objects import is_url

if TYPE_CHECKING:
    from storage.features import FeatureSpec
    from storage.forgetting import Place, Wanted

_LOOK_S = 0.5


@click.command(
    cls=Command,
    name="forget",
    epilog="""\b
Examples:
  emberline forget build/run --repository build/models --table users --ids ids.txt --dry-run
  emberline forget build/run --repository build/models --input user_id --ids users.csv
  emberline forget --repository build/models --name ranker --table items --ids gone.parquet
  emberline forget build/run --repository s3://bucket/models --input user_id --ids users.parquet --column account \\
      --url http://server-1:8000 --url http://server-2:8000 --search /var/lib/emberline --search /var/log/emberline""",
)
@click.argument("run", type=LocalPath(exists=True, file_okay=False), required=False)
@click.option(
    "--repository",
    type=Repository(),
    required=True,
    help="Model repository that RUN was published into, a folder or a URL such as s3://bucket/models.",
)
@click.option(
    "--name",
    help="The model of the repository, where there is no RUN.",
    shell_complete=complete_in_repository("repository"),
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
    "--feature-log",
    "logs",
    type=LocalPath(exists=True, file_okay=False),
    multiple=True,
    help="Folder of a server's log of requests, such as its --feature-log, in which rows are erased too; may be given "
    "several times.",
)
@click.option(
    "--feature-log-key",
    type=LocalPath(exists=True, dir_okay=False),
    help="File with the key of the digests in these logs.",
)
@click.option(
    "--within",
    type=click.FloatRange(0),
    default=600.0,
    show_default=True,
    help="Seconds in which servers, and their stores in --search, have to let go.",
)
@click.option("--dry-run", is_flag=True, help="Say where the ids are found, and change nothing.")
@JSON
@QUIET
@IDENTITY
def command(
    run: Path | None,
    repository: Path | str,
    name: str | None,
    file: Path,
    column: str | None,
    tables: tuple[str, ...],
    input_name: str | None,
    urls: tuple[str, ...],
    folders: tuple[Path, ...],
    logs: tuple[Path, ...],
    feature_log_key: Path | None,
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

    Without RUN, for a model that no run of this package publishes, the newest snapshot is written as a version without
    the ids, from its files.

    The same call again finishes one that was stopped. Training data is not changed: remove the rows there before, or
    training on them again makes new rows of the ids. Exit code 1 when something is left.
    """
    if (run is None) == (name is None):
        raise click.UsageError("give either RUN, or with --name a model of the repository")
    for url in urls:
        check_url(url)
    subject: Subject = ModelSubject(repository, name) if name is not None else RunSubject(run or Path(), repository)
    wanted = _wanted(subject.spec, file, column, tables, input_name)
    from storage.forgetting import forget_in_logs
    from storage.served_log import read_hash_key

    subject.check(wanted)
    report = ForgetReport(ids={name: len(ids) for name, ids in wanted.tables.items()}, shared=dict(wanted.shared))
    try:
        with bars(quiet or as_json) as progress:
            key = b"" if feature_log_key is None else read_hash_key(feature_log_key)
            search = _Search(subject, (*folders, *logs), wanted, progress, key)
            report.found = search.places("searching")
            if not dry_run:
                started = time.monotonic()
                is_there = any(_is_under(place.path, subject.folders()) for place in report.found)
                if is_there or is_url(repository):
                    report.done = subject.forget(wanted, quiet=quiet or as_json)
                report.log_rows = forget_in_logs(logs, wanted, subject.spec, key)
                until = time.monotonic() + within
                version = subject.version() if urls else 0
                report.servers = [wait_for_server(url, subject.name, version, wanted, until) for url in urls]
                report.left = search.places_after(folders if urls else (), until)
                report.seconds = time.monotonic() - started
                report.files, report.bytes = search.files, search.bytes
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt("interrupted; the same command finishes what it began") from stop
    report.show(as_json=as_json, dry_run=dry_run)
    if not dry_run and not report.is_clean:
        raise click.exceptions.Exit(1)


class _Search:
    """Reads every file of some folders, and counts what it read."""

    def __init__(
        self, subject: Subject, folders: Sequence[Path], wanted: Wanted, progress: Progress, log_key: bytes
    ) -> None:
        from storage.forgetting import Needles

        self._subject, self._folders, self._wanted, self._progress = subject, folders, wanted, progress
        self._needles, self._log_key = Needles(), log_key
        self.files = self.bytes = 0
        for ids in wanted.tables.values():
            for number in ids.tolist():
                self._needles.add_id(number)
        for value in (value for values in wanted.values.values() for value in values):
            if isinstance(value, bytes):
                self._needles.add(value, "bytes of values")

    def places(self, what: str) -> list[Place]:
        """Returns where something of the ids is found."""
        from storage.forgetting import find_places
        from storage.forgetting.places import files_under

        roots = [*self._subject.folders(), *self._folders]
        sizes = [path.stat().st_size for root in roots for path in files_under(root) if path.exists()]
        self.files, self.bytes = len(sizes), sum(sizes)
        task = self._progress.add_task(what, total=self.bytes)

        def advance(count: int) -> None:
            self._progress.advance(task, count)

        return find_places(roots, self._wanted, self._subject.spec, self._needles, advance, log_key=self._log_key)

    def places_after(self, waited: Sequence[Path], until: float) -> list[Place]:
        """Returns what is left. waited: folders of servers, which may be deleting it."""
        found = self.places("searching again")
        while found and waited and time.monotonic() < until and all(_is_under(each.path, waited) for each in found):
            time.sleep(_LOOK_S)
            found = self.places("searching again")
        return found


def _wanted(
    spec: FeatureSpec, file: Path, column: str | None, tables: tuple[str, ...], input_name: str | None
) -> Wanted:
    if bool(tables) == (input_name is not None):
        raise WrongUsageError(
            "give either --table, where --ids are ids of its rows, or --input, where they are raw values", field="table"
        )
    from emberline.cli.id_files import read_values, whole_numbers
    from storage.forgetting import Wanted, wanted_values

    values = read_values(file, column)
    if input_name is not None:
        return wanted_values(spec, input_name, values)
    ids = whole_numbers(file, values)
    return Wanted.of_ids(dict.fromkeys(tables, ids))


def _is_under(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
