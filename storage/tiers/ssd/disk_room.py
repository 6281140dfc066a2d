"""Checks before a write that it still fits within the store's own bound of bytes, and on the disk."""

from __future__ import annotations

import os
from pathlib import Path

from storage.errors import StoreError


class DiskRoom:
    """Checks the room for the files below a folder.

    disk_bytes: the bound of all these files; None for no bound. reserve_bytes: the bytes of the disk to leave free.
    """

    def __init__(self, path: Path, disk_bytes: int | None, reserve_bytes: int) -> None:
        self._path = path
        self._disk_bytes = disk_bytes
        self._reserve_bytes = reserve_bytes

    def used(self) -> int:
        """Returns the bytes of all files of the store."""
        return bytes_below(self._path)

    def require(self, more: int, doing: str) -> None:
        """Raises StoreError when `more` bytes do not fit, before any of them is written."""
        if self._disk_bytes is not None:
            used = self.used()
            if used + more > self._disk_bytes:
                raise StoreError(
                    f"{doing}: the store takes {used} bytes and needs {more} more, but may take {self._disk_bytes} in "
                    "all (disk_bytes); raise the bound, or publish fewer rows"
                )
        status = os.statvfs(self._path)
        free = status.f_bavail * status.f_frsize
        if free < more + self._reserve_bytes:
            raise StoreError(
                f"{doing}: the disk is full: {free} bytes are free, {more} more are needed and {self._reserve_bytes} "
                f"are kept free (reserve_bytes); free space, or give the store another folder than {self._path}"
            )


def bytes_below(path: Path) -> int:
    """Returns the bytes of all files in a folder and those below it; files removed meanwhile do not count."""
    total = 0
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        total += bytes_below(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
    except FileNotFoundError:
        pass
    return total
