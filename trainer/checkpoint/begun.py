"""The number of the update that began last, kept beside the commits: an update has no commit of its own at first."""

from __future__ import annotations

import os
from pathlib import Path

from storage.checkpoint.install import sync_directory
from storage.checkpoint.strict_json import canonical_json, parse_json
from storage.checkpoint.tensors import write_bytes
from storage.errors import CheckpointError

_NAME = "begun.json"
_MAX_BYTES = 4096


def begun_update(output: Path) -> int:
    """Returns the number of the update that began last, 0 where none is known. Raises CheckpointError."""
    path = output / "checkpoints" / _NAME
    try:
        content = parse_json(path.read_bytes(), what=str(path), max_bytes=_MAX_BYTES)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    number = content.get("update") if isinstance(content, dict) else None
    if not isinstance(number, int):
        raise CheckpointError(f"{path}: expected the number of an update; remove the file")
    return number


def note_begun_update(output: Path, number: int) -> None:
    """Says that this update begins. It is on the disk when the function returns. Raises CheckpointError."""
    path = output / "checkpoints" / _NAME
    new = path.with_name(f".{_NAME}.new")
    try:
        new.unlink(missing_ok=True)
        write_bytes(new, canonical_json({"update": number}))
        os.replace(new, path)
        sync_directory(path.parent)
    except OSError as error:
        raise CheckpointError(f"{path}: could not be written: {error}") from error
