"""Lists the deltas of a version: complete folders under its `deltas`, each named by its sequence."""

from __future__ import annotations

import os
import re
from pathlib import Path

from storage.checkpoint.signed import MANIFEST
from storage.paths import local_path

DELTAS = "deltas"
_SEQUENCE = re.compile(r"[0-9]{6,19}")


def sequence_name(sequence: int) -> str:
    """Returns the name of a delta's folder: six digits, or more when it needs them."""
    return f"{sequence:06d}"


def is_sequence(name: str) -> bool:
    """Returns whether a folder's name is that of a delta."""
    return _SEQUENCE.fullmatch(name) is not None and sequence_name(int(name)) == name and int(name) > 0


def list_deltas(version_dir: Path | str) -> list[int]:
    """Returns the sequences of a version's deltas, ascending. A folder without a manifest is not one, nor is a link.

    Raises OSError for a delta that cannot be examined, because it must not be treated as missing.
    """
    deltas = local_path(version_dir, "version_dir") / DELTAS
    if deltas.is_symlink():
        return []
    try:
        with os.scandir(deltas) as entries:
            return sorted(
                int(entry.name)
                for entry in entries
                if is_sequence(entry.name) and entry.is_dir(follow_symlinks=False) and _has_manifest(entry.path)
            )
    except (FileNotFoundError, NotADirectoryError):
        return []


def _has_manifest(folder: str) -> bool:
    try:
        os.lstat(os.path.join(folder, MANIFEST))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def next_sequence(version_dir: Path | str) -> int:
    """Returns one more than the largest sequence in use.

    A publisher whose deltas get removed must remember its own last sequence.
    """
    try:
        names = os.listdir(local_path(version_dir, "version_dir") / DELTAS)
    except (FileNotFoundError, NotADirectoryError):
        names = []
    return max((int(name) for name in names if is_sequence(name)), default=0) + 1
