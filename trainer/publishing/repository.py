"""Reads the contents of a model's repository folder: its versions and their deltas, found by snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from storage.checkpoint import PublishedDelta, PublishedVersion, list_deltas, open_delta, open_version
from storage.checkpoint.delta_manifest import REMOVED
from storage.checkpoint.deltas import DELTAS, sequence_name
from storage.checkpoint.signed import FileEntry
from storage.checkpoint.versions import is_version
from storage.errors import CheckpointError, NotFound


def version_numbers(model_dir: Path) -> list[int]:
    """Returns the numbers of the folders that are named like a version, ascending."""
    if not model_dir.is_dir():
        return []
    return sorted(int(entry.name) for entry in model_dir.iterdir() if is_version(entry.name))


def read_version(model_dir: Path, number: int) -> PublishedVersion | None:
    """Opens a version, or returns None when it is not there or unusable.

    Raises ReadError or OSError when it cannot be read now.
    """
    try:
        return open_version(model_dir / str(number), verify=False)
    except (CheckpointError, NotFound):
        return None


def find_version(model_dir: Path, snapshot: str) -> PublishedVersion | None:
    """Returns the version with this snapshot, looking at the newest first."""
    for number in reversed(version_numbers(model_dir)):
        version = read_version(model_dir, number)
        if version is not None and version.snapshot == snapshot:
            return version
    return None


def read_deltas(version_dir: Path) -> list[PublishedDelta]:
    """Returns the deltas of a version in the order of their sequences; those that are unusable are left out.

    Raises ReadError or OSError when one cannot be read now.
    """
    found: list[PublishedDelta] = []
    for sequence in list_deltas(version_dir):
        try:
            found.append(open_delta(version_dir / DELTAS / sequence_name(sequence), verify=False))
        except (CheckpointError, NotFound):
            continue
    return found


def find_delta(version_dir: Path, snapshot: str) -> PublishedDelta | None:
    """Returns the delta that leads to this snapshot."""
    return next((delta for delta in reversed(read_deltas(version_dir)) if delta.snapshot == snapshot), None)


def row_bytes(files: Sequence[FileEntry]) -> int:
    """Bytes of the files that hold rows and removed ids, of a version or a delta."""
    return sum(entry.size for entry in files if entry.path == REMOVED or entry.path.startswith("tables/"))
