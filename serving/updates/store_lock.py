"""Locks the folder with a model's stores, so that one process at a time uses it, by a lock on its file LOCK.

The system releases the lock when the process ends, however it ends. It is taken before anything else in the folder is
read or changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from storage.errors import StoreError

LOCK = "LOCK"


class StoreLock:
    """The lock on one folder. Not thread-safe: one thread uses it at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Takes the lock, unless it is held already. Raises StoreError that names the process that holds it."""
        if self._descriptor is not None:
            return
        path = self._folder / LOCK
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror or error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The text is for the process that is refused. A full disk is no reason not to continue.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise StoreError(
                f"the store {self._folder} is open in another process{holder}; stop that one, or give each server a "
                "folder of its own with --store"
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise StoreError(f"{path} cannot be locked: {error.strerror or error}") from error
        self._descriptor = descriptor

    def release(self) -> None:
        """Releases the lock, if it is held. The file stays: another process may be waiting for it."""
        if self._descriptor is not None:
            # A child that was forked but has not yet started its program still has the descriptor, and so the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the lock on a folder within the block. Raises StoreError as `StoreLock.acquire`."""
    lock = StoreLock(folder)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _holder(descriptor: int) -> str:
    try:
        text = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
    except OSError:
        return ""
    return f" ({text})" if text else ""
