"""Sorts records by id in bounded memory: each piece of the result has a place in a file, where its records go."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from storage.tiers.ssd.disk_errors import disk_errors
from storage.tiers.training.spool import MEMORY_BYTES

Ids = NDArray[np.int64]
Records = NDArray[np.uint8]


def sorted_records(
    ids: Ids, parts: Iterable[tuple[Ids, Records]], record_bytes: int, piece_rows: int, folder: Path
) -> Iterator[tuple[Ids, Records]]:
    """Yields ids (k,) and records (k, record_bytes), ascending by id, `piece_rows` at a time.

    ids: (n,) ascending, all of them. parts: the same ids with their records, in any order. Raises StoreError when there
    is no room in `folder` for the records.
    """
    if len(ids) == 0:
        return
    kind = np.dtype([("id", "<i8"), ("record", "u1", (record_bytes,))])
    shelf = _shelf(len(ids), kind, folder)
    starts = np.arange(0, len(ids), piece_rows)
    filled = starts.copy()
    for found, records in parts:
        order = np.argsort(found, kind="stable")
        mine = np.empty(len(found), kind)
        mine["id"], mine["record"] = found[order], records[order]
        pieces = np.searchsorted(ids[starts], mine["id"], side="right") - 1
        for piece, first, count in zip(*np.unique(pieces, return_index=True, return_counts=True), strict=True):
            shelf[filled[piece] : filled[piece] + count] = mine[first : first + count]
            filled[piece] += count
    for start in starts:
        piece = shelf[start : start + piece_rows]
        order = np.argsort(piece["id"], kind="stable")
        yield piece["id"][order], piece["record"][order]


def _shelf(count: int, kind: np.dtype[np.void], folder: Path) -> NDArray[np.void]:
    """Returns an array of `count` entries, in a file without a name when it is large."""
    size = count * kind.itemsize
    if size <= MEMORY_BYTES:
        return np.empty(count, kind)
    with disk_errors(f"sorting {count} rows in a file in {folder}"), tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        return np.asarray(np.memmap(file, dtype=kind, mode="r+", shape=(count,)))  # the mapping keeps the file
