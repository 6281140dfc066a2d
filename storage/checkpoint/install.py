"""Installs a folder atomically: writes it beside its place, forces it to the disk, and renames it once.

A reader sees the whole folder or none of it. A crash leaves a folder whose name starts with ".publish-", which readers
ignore and which may be deleted. Paths are local; other file systems are not supported yet.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from storage.errors import CheckpointError


def make_place(parent: Path) -> None:
    """Makes the folder that snapshots are published into. Raises CheckpointError when nothing can be written there."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot publish into {parent}: {error.strerror or error}") from error
    if not os.access(parent, os.W_OK | os.X_OK):
        raise CheckpointError(f"cannot publish into {parent}: it may not be written to")


@contextmanager
def publishing(parent: Path) -> Iterator[Path]:
    """Yields a folder in `parent` to be filled and moved; removes what is left of it at the end.

    Errors of the disk and of a manifest's schema are raised as CheckpointError.
    """
    folder = parent / f".publish-{secrets.token_hex(8)}"
    try:
        folder.mkdir()
        yield folder
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise CheckpointError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except OSError as error:
        raise CheckpointError(f"publishing to {parent} failed: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def move_into_place(folder: Path, target: Path) -> bool:
    """Renames a finished folder and forces the rename to the disk; returns False when the target's name is taken."""
    # Checked first, because a rename replaces an empty folder.
    if os.path.lexists(target):
        return False
    try:
        os.rename(folder, target)
    except OSError:
        if not os.path.lexists(target):
            raise
        return False
    sync_directory(target.parent)
    sync_directory(target.parent.parent)
    return True


def sync_directory(path: Path) -> None:
    """Forces a folder's names to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
