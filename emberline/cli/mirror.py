"""`emberline mirror`: copies a repository from an object store to a folder and keeps it so, or uploads one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from emberline.cli.command import Command, Repository, WrongUsageError
from emberline.cli.sizes import RATE
from emberline.cli.target import QUIET, bars
from emberline.terminal import progress_console
from storage.errors import InvalidInput
from storage.objects import ObjectStore, is_url

_SHOW_S = 0.2


@click.command(
    cls=Command,
    name="mirror",
    epilog="""\b
Examples:
  emberline mirror s3://bucket/models /var/lib/emberline/models
  emberline mirror s3://bucket/models models --model shop --rate 200MiB --once
  emberline mirror build/models s3://bucket/models""",
)
@click.argument("source", type=Repository())
@click.argument("target", type=Repository())
@click.option("--model", "models", multiple=True, help="Copy this model only; may be given several times.")
@click.option("--once", is_flag=True, help="Copy what is there now, and end.")
@click.option("--all", "everything", is_flag=True, help="Every version and delta, not only what a server needs.")
@click.option(
    "--poll", "poll_s", type=click.FloatRange(0.05, 3600), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--rate", type=RATE, help="Bytes a second that may come, such as 200MiB. Default: no bound.")
@QUIET
def command(
    source: Path | str,
    target: Path | str,
    models: tuple[str, ...],
    once: bool,
    everything: bool,
    poll_s: float,
    rate: int | None,
    quiet: bool,
) -> None:
    """Keep a folder like the repository of an object store: from SOURCE, a URL, to TARGET, a folder.

    Servers of one machine may read that folder (emberline serve --model-repository FOLDER), so that a machine asks the
    object store once. It holds the versions that each model's policy asks for and the deltas that lead to the newest
    snapshots; what leaves the object store leaves the folder. Ctrl-C or SIGTERM ends it.

    From a folder to a URL, it uploads the versions and deltas that the object store has not, and ends. Credentials come
    from the environment, as docs/object-stores.md says.
    """
    if is_url(source) == is_url(target):
        raise WrongUsageError(
            "SOURCE and TARGET: one is a URL of an object store, such as s3://bucket/models, and the other a folder",
            field="TARGET",
        )
    if is_url(target):
        _upload(Path(source), str(target), models, quiet)
    else:
        _download(str(source), Path(target), models, once, everything, poll_s, rate, quiet)


def _download(
    url: str,
    folder: Path,
    models: tuple[str, ...],
    once: bool,
    everything: bool,
    poll_s: float,
    rate: int | None,
    quiet: bool,
) -> None:
    from serving.repository.remote import chosen_versions, label_files
    from storage.objects.mirror import RepositoryMirror

    mirror = RepositoryMirror(
        url,
        folder,
        models=models,
        poll_s=poll_s,
        bytes_per_s=rate,
        choose=None if everything else chosen_versions,
        side_files=label_files,
    )
    try:
        names = mirror.find_models()
        if not names:
            raise InvalidInput(f"SOURCE {url}: no model is published there", field="SOURCE")
        mirror.start(names)
        with _bars(quiet) as shown:
            tasks: dict[str, Any] = {}
            while True:
                for name, status in mirror.statuses().items():
                    if name not in tasks:
                        tasks[name] = shown.add_task(name, total=None)
                    words = f"{name} {status.bringing or status.newest}" + (" (waits)" if status.error else "")
                    shown.update(
                        tasks[name], description=words, completed=status.done_bytes, total=status.total_bytes or None
                    )
                if once and all(mirror.has_tried(name) for name in names):
                    break
                time.sleep(_SHOW_S)
        failed = [status.error for status in mirror.statuses().values() if status.error]
        if failed:
            raise InvalidInput(failed[0], field="SOURCE")
        click.echo(
            f"{folder}: " + ", ".join(f"{name} {status.newest}" for name, status in sorted(mirror.statuses().items()))
        )
    finally:
        mirror.stop()


def _upload(folder: Path, url: str, models: tuple[str, ...], quiet: bool) -> None:
    from serving.model_folders import folders, is_model
    from serving.updates.catalog import numbered
    from storage.checkpoint.deltas import DELTAS, list_deltas, sequence_name
    from storage.objects.published import PublishedModel

    if not folder.is_dir():
        raise InvalidInput(f"SOURCE {folder}: is no folder", field="SOURCE")
    names = [name for name in folders(folder) if is_model(folder / name)]
    for name in models:
        if name not in names:
            raise InvalidInput(f"--model {name}: {folder} has {', '.join(names) or 'no model'}", field="model")
    objects = ObjectStore(url)
    objects.check_conditional_writes()
    with bars(quiet) as shown:
        for name in models or names:
            model = PublishedModel(objects, name)
            versions = [folder / name / str(number) for number in numbered(folder / name)]
            paths = [
                path
                for version in versions
                for path in (version, *(version / DELTAS / sequence_name(each) for each in list_deltas(version)))
            ]
            task = shown.add_task(name, total=len(paths))
            for path in paths:
                shown.update(task, description=f"{name} {path.relative_to(folder / name)}")
                model.put(path)
                shown.advance(task)
    click.echo(f"{url}: {', '.join(models or names) or 'nothing'}")


@contextmanager
def _bars(quiet: bool) -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = progress_console()
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as progress:
        yield progress
