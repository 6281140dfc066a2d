"""Prints the errors of ranks that fail together: the same words once, by whichever rank is the first to say them.

The ranks of a machine share a folder, in which each leaves what it has to say before it says it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

import click

from storage.errors import ConfigError, RankLost
from trainer.rank_place import RankPlace, rank_place

# Ranks that fail in the same way do so within moments; one that fails alone waits so long for the others.
_WAIT_S = 1.0
_LOOK_S = 0.02


def say_error(text: str, error: BaseException | None = None, *, head: str = "emberline: ") -> None:
    """Prints the error that ends this process on standard error, unless another rank has said the same.

    A rank other than the first is named where not all of this machine fail in the same way. That another rank has ended
    is said only where that one said nothing. head: comes before the name of the rank.
    """
    try:
        place = rank_place()
    except ConfigError:  # the environment is half that of a rank, which may be the error itself
        place = RankPlace()
    named = "" if place.rank == 0 else f"rank {place.rank}: "
    if place.size > 1 and place.errors is not None:
        # Ranks that are interrupted end together, and the first one says it.
        wait_s = 0.0 if isinstance(error, KeyboardInterrupt | click.Abort) else _WAIT_S
        with contextlib.suppress(OSError):
            found = _named(place, place.errors, text, wait_s, is_echo=isinstance(error, RankLost))
            if found is None:
                return
            named = found
    click.echo(f"{head}{named}{text}", err=True)


def _named(place: RankPlace, folder: Path, text: str, wait_s: float, *, is_echo: bool) -> str | None:
    """Returns what names this rank before its error, "" for nothing; None where the error is not to be printed."""
    own = folder / f"said-{place.local_rank}.json"
    unfinished = own.with_suffix(".new")
    unfinished.write_text(json.dumps([text, is_echo]))
    os.replace(unfinished, own)
    deadline = time.monotonic() + wait_s
    while True:
        said = [json.loads(path.read_bytes()) for path in folder.glob("said-*.json")]
        if is_echo and any(not other_is_echo for _, other_is_echo in said):
            return None
        if len(said) >= place.local_size or time.monotonic() > deadline:
            break
        time.sleep(_LOOK_S)
    try:
        (folder / f"printed-{hashlib.sha256(text.encode()).hexdigest()[:32]}").touch(exist_ok=False)
    except FileExistsError:
        return None
    of_all = sum(other == text for other, _ in said) >= place.local_size
    return "" if of_all or place.rank == 0 else f"rank {place.rank}: "
