"""The options --nproc and --max-restarts: a command that starts itself as several ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click

from emberline.cli.command import arguments_without

_NPROC = click.option(
    "--nproc",
    type=click.IntRange(1),
    metavar="N",
    help="Train with N processes of this machine, which have a part of the tables each (docs/ranks.md).",
)
_MAX_RESTARTS = click.option(
    "--max-restarts",
    type=click.IntRange(0),
    default=3,
    help="With --nproc: how often all processes start again, from the last commit, because one was killed.",
)


def rank_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command both options."""
    return _NPROC(_MAX_RESTARTS(command))


def starts_ranks(nproc: int | None) -> bool:
    """Returns whether this process starts others. Raises click.UsageError where it was started as one of several."""
    from trainer.rank_place import rank_place

    if nproc is not None and rank_place().size > 1:
        raise click.UsageError("--nproc starts the processes itself; leave it out with torchrun")
    return nproc is not None and nproc > 1


def run_ranks(nproc: int, max_restarts: int) -> NoReturn:
    """Runs the command line as `nproc` ranks, and ends this process as they end."""
    from trainer.rank_processes import RankProcesses

    arguments = arguments_without(click.get_current_context(), "--nproc", "--max-restarts")
    command = [sys.executable, "-m", "emberline", *arguments]
    ranks = RankProcesses(
        command, nproc, max_restarts=max_restarts, say=lambda text: click.echo(f"emberline: {text}", err=True)
    )
    sys.exit(ranks.run())
