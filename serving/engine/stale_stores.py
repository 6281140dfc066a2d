"""Deletes the stores of versions that are no longer served: they only copy what the repository holds or has dropped."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from pathlib import Path

logger = logging.getLogger("emberline.serving")


def remove_stale_stores(folder: Path, served: set[str]) -> None:
    """Removes folders with a number for a name that is not in `served`, unless another process has them open."""
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.name in served or not entry.name.isdecimal() or not entry.is_dir() or _is_open(entry):
            continue
        shutil.rmtree(entry, ignore_errors=True)
        logger.info("%s: removed the store of a version that is not served any more", entry)


def _is_open(store: Path) -> bool:
    # RocksDB holds a POSIX lock on its LOCK for as long as a process has the store open.
    try:
        descriptor = os.open(store / "rocksdb" / "LOCK", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
