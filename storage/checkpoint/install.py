"""Installs a folder atomically: writes it beside its place, forces it to the disk, and renames it once.

A reader sees the whole folder or none of it. A crash leaves a folder whose name starts with ".publish-", which readers
ignore and which the next publisher removes: its own process holds a lock on it, and a day is enough for publishers of
other machines. Paths are local; other file systems are not supported yet.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from storage.errors import CheckpointError

#: The prefix of unfinished folders; readers skip them.
UNFINISHED = ".publish-"
_REMOVED = f"{UNFINISHED}removed-"
# An unfinished folder of this age belongs to a publisher that has ended.
_ABANDONED_S = 24 * 3600.0
_ATTEMPTS = 100


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
    """Yields a folder in `parent` to be filled and moved; removes what is left of it, and of crashed publishers.

    Errors of the disk and of a manifest's schema are raised as CheckpointError.
    """
    sweep(parent)
    lock, folder = -1, parent / UNFINISHED
    try:
        lock, folder = _locked(parent)
        yield folder
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise CheckpointError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except OSError as error:
        raise CheckpointError(f"publishing to {parent} failed: {error}") from error
    finally:
        if lock >= 0:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(parent: Path) -> tuple[int, Path]:
    """Makes an unfinished folder, and returns a descriptor that holds its lock. Raises OSError."""
    for _ in range(_ATTEMPTS):
        folder = parent / f"{UNFINISHED}{_machine()}-{secrets.token_hex(8)}"
        folder.mkdir()
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # another publisher saw it without a lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        except OSError:
            return lock, folder  # no locks on this file system: a day decides
        if os.fstat(lock).st_nlink:
            return lock, folder
        os.close(lock)
    raise FileNotFoundError(f"{parent}: unfinished folders are removed at once")


def sweep(parent: Path) -> None:
    """Removes what publishers that have ended, and removals that were cut off, left in a folder."""
    with suppress(OSError):
        for entry in parent.iterdir():
            if entry.name.startswith(UNFINISHED):
                with suppress(OSError):
                    _sweep(entry)


def _sweep(folder: Path) -> None:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _is_abandoned(folder.name, lock):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _is_abandoned(name: str, lock: int) -> bool:
    if name.startswith(_REMOVED):
        return True
    if name.startswith(f"{UNFINISHED}{_machine()}-"):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        except OSError:
            pass  # no locks on this file system
    return time.time() - os.fstat(lock).st_mtime > _ABANDONED_S


@cache
def _machine() -> str:
    """Returns a name of the kernel that runs here, within which locks are known to hold."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        boot = secrets.token_bytes(8)
    return hashlib.sha256(boot).hexdigest()[:8]


def remove_hidden(folder: Path) -> None:
    """Removes a published folder, after a rename to a name that no reader looks at. What cannot be removed stays."""
    hidden = folder.parent / f"{_REMOVED}{secrets.token_hex(8)}"
    with suppress(OSError):
        os.rename(folder, hidden)
        shutil.rmtree(hidden, ignore_errors=True)


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
