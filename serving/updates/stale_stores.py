"""Deletes the stores of versions that are no longer served: they only copy what the repository holds or has dropped."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
from pathlib import Path

logger = logging.getLogger("emberline.serving")

# The version that it was filled with first; a second store for one version has a number of its own.
_STORE = re.compile(r"[0-9]+(-[0-9]+)?")


def remove_stale_stores(folder: Path, served: set[str]) -> None:
    """Removes stores whose folder is not in `served`, unless another process has them open."""
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.name in served or not _STORE.fullmatch(entry.name) or not entry.is_dir() or _is_open(entry):
            continue
        shutil.rmtree(entry, ignore_errors=True)
        logger.info("%s: removed the store of a version that is not served any more", entry)


def stores_in(folder: Path) -> list[str]:
    """Returns the names of the stores in a model's folder, those that are about to be deleted too."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if _STORE.fullmatch(entry.name))


def _is_open(store: Path) -> bool:
    # RocksDB holds a POSIX lock on its LOCK for as long as a process has the store open.
    try:
        descriptor = os.open(store / "rocksdb" / "LOCK", os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # unknown, so it stays
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
