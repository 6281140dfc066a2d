"""Reads use counts of a published table without its rows: hints for filling DRAM.

Only the header, the ids and the use counts of a shard are read, a fifteenth of a file with 32 floats a row, and no
digest is computed. So these are hints: they say which rows to ask the store for, and none of them reaches an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path

import numpy as np

from storage.checkpoint.folder import plain_file
from storage.checkpoint.tensors import TensorPlace, read_header
from storage.errors import EmberlineError, UnsafeArtifact

logger = logging.getLogger(__name__)

# Ids (n,) int64 and their use counts (n,) uint8.
Uses = tuple[np.ndarray, np.ndarray]


def read_uses(folder: Path, shards: Sequence[str]) -> Iterator[Uses]:
    """Yields ids and logarithmic use counts of a table, shard by shard. Ends, with a warning, at an unreadable one."""
    for name in shards:
        try:
            with plain_file(folder / name) as file:
                uses = _read(name, file)
        except (OSError, EmberlineError) as error:
            logger.warning("%s: the use counts from here on are left out: %s", folder / name, error)
            return
        yield uses


def _read(name: str, file: FileIO) -> Uses:
    places, start = read_header(name, file)
    ids = _tensor(name, file, start, places.get("ids"), "I64").view("<i8")
    counts = _tensor(name, file, start, places.get("freq"), "U8")
    if len(ids) != len(counts):
        raise UnsafeArtifact(f"{name}: {len(ids)} ids have {len(counts)} use counts")
    return ids.astype(np.int64, copy=False), counts


def _tensor(name: str, file: FileIO, start: int, place: TensorPlace | None, dtype: str) -> np.ndarray:
    if place is None or place.dtype != dtype or len(place.shape) != 1:
        raise UnsafeArtifact(f"{name}: it has no one-dimensional {dtype} tensor where one was expected")
    buffer = np.empty(place.last - place.first, np.uint8)
    file.seek(start + place.first)
    filled = 0
    while filled < len(buffer):
        count = file.readinto(buffer[filled:].data)
        if not count:
            raise UnsafeArtifact(f"{name}: it ends inside of a tensor")
        filled += count
    return buffer
