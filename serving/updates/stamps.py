"""Detects whether the files of a published folder have changed, and whether they are being written."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from serving.updates.catalog import Found
from storage.checkpoint.deltas import DELTAS
from storage.checkpoint.manifest import MANIFEST

# Seconds without a write after which a folder counts as finished.
REST_S = 5.0
_MOVING = "+"


@dataclass(frozen=True)
class FilesStamp:
    """A stamp of the files in a folder."""

    #: Differs once a file was written again, added or removed.
    text: str
    #: True if something was written lately.
    moving: bool

    def recorded(self, *, until_rest: bool) -> str:
        """Returns what a refusal remembers.

        until_rest: a folder that was being written is judged again when it rests.
        """
        return self.text + (_MOVING if until_rest and self.moving else "")

    def is_recorded(self, stamp: str) -> bool:
        """Returns whether a remembered stamp is this one."""
        return stamp.removesuffix(_MOVING) == self.text and (self.moving or not stamp.endswith(_MOVING))


def stamp_of(found: Found) -> FilesStamp:
    """Returns the stamp of a version, or of a delta together with the manifest of its version.

    Raises OSError as `files_stamp`.
    """
    return files_stamp(found.path, found.path.parent.parent / MANIFEST if found.is_delta else None)


def files_stamp(folder: Path, beside: Path | None = None) -> FilesStamp:
    """Returns the stamp of all files below a folder, without a version's deltas, and of one more file beside it.

    Raises OSError when they cannot be looked at; a missing file is no error.
    """
    seen: list[str] = []
    newest_ns = 0
    for place, folders, names in os.walk(folder, onerror=_unless_gone):
        folders[:] = sorted(name for name in folders if name != DELTAS)
        status = _status(place)
        newest_ns = max(newest_ns, 0 if status is None else status.st_mtime_ns)
        for name in sorted(names):
            status = _status(os.path.join(place, name))
            if status is not None:
                seen.append(_mount(name, status))
                newest_ns = max(newest_ns, status.st_mtime_ns)
    status = None if beside is None else _status(beside)
    if status is not None:
        seen.append(_mount("..", status))
    moving = abs(time.time_ns() - newest_ns) < REST_S * 1e9
    return FilesStamp(hashlib.sha256("\n".join(seen).encode(errors="surrogateescape")).hexdigest()[:32], moving)


def _mount(name: str, status: os.stat_result) -> str:
    return f"{name}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


def _status(path: str | Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
