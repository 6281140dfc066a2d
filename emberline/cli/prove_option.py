"""The option --prove of imports: the server that is replaced is compared with what was published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from emberline.cli.server_call import IDENTITY


def prove_options() -> list[Callable[..., Any]]:
    """Makes the options --prove (as `old`) and --prove-model (as `old_name`), and those of the caller's identity."""
    return [
        click.option(
            "--prove",
            "old",
            metavar="HOST:PORT",
            help="Send the same requests to the server that is replaced, too, and explain what differs, as "
            "`emberline prove` does.",
        ),
        click.option("--prove-model", "old_name", metavar="NAME", help="Name of the model there; default: --name."),
        IDENTITY,
    ]


def check_prove(old: str | None, check: bool, delta: bool = False) -> None:
    """Raises click.UsageError where nothing would be published, or no version."""
    if old is not None and check:
        raise click.UsageError("--prove compares with what is published, and --check publishes nothing; give one")
    if old is not None and delta:
        raise click.UsageError("--prove compares with a version; after a --delta, run `emberline prove`")


def prove_published(old: str, version: Path, old_name: str | None, batches: Sequence[Any] | None = None) -> None:
    """Compares the server with a version, and ends as `emberline prove` does. batches: default golden ones."""
    from emberline.cli.prove import end_by, prove_model

    proof = prove_model(old, version.parent, model=old_name, as_of=version.name, batches=batches)
    end_by(proof, is_given=False)
