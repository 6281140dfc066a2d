"""Checks that a GPU holds what the host's index says, and that its rows are those of the store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from storage.errors import StoreError
from storage.hbm.base_rows import DIFFERENCE_TIMEOUT_S, SnapshotRows
from storage.hbm.publisher import Publisher
from storage.hbm.replica import GpuSlab, Replica
from storage.hbm.visibility import View

if TYPE_CHECKING:
    import torch

_IDS = 1 << 14


def check_replica(view: View, publisher: Publisher, rows: SnapshotRows) -> None:
    """Compares a replica with the store. Nothing may change meanwhile. Raises StoreError."""
    assert view.base is not None
    for slab in view.replica.slabs:
        try:
            slab.cache.check_integrity()
        except RuntimeError as error:
            raise StoreError(f"a GPU's index: {error}") from error
        there = np.concatenate([part.copy() for part in _parts(slab.buckets.nbytes, slab.buckets, publisher)])
        if not np.array_equal(there, slab.cache.buckets()):
            wrong = int(np.argmax(there != slab.cache.buckets())) // 64
            raise StoreError(f"a GPU's index is not the host's, from bucket {wrong} on")
        _check_rows(view, slab, publisher, rows)


def _check_rows(view: View, slab: GpuSlab, publisher: Publisher, rows: SnapshotRows) -> None:
    replica, cache = view.replica, slab.cache
    slabs = np.concatenate([part.copy() for part in _parts(slab.rows.nbytes, slab.rows, publisher)])
    held = slabs.reshape(-1, slab.stride)[:, : slab.row_bytes]
    tables, ids, _ = cache.hot_ids(cache.capacity_rows, replica.base_tables)
    for table in slab.members:
        own = ids[tables == table]
        for start in range(0, len(own), _IDS):
            piece = own[start : start + _IDS]
            assert view.base is not None
            expected, found = rows.find(view.base, table, piece, DIFFERENCE_TIMEOUT_S)
            if not found.all():
                raise StoreError(f"{_name(replica, table)}: the GPU has id {piece[~found][0]}, the store has not")
            got = held[cache.find(table, piece)]
            if not np.array_equal(got, expected):
                wrong = piece[int(np.argmax((got != expected).any(axis=1)))]
                raise StoreError(f"{_name(replica, table)}: the GPU has another row for id {wrong} than the store")


def _parts(size: int, buffer: torch.Tensor, publisher: Publisher) -> Iterator[np.ndarray]:
    most = publisher.buffer_bytes
    for start in range(0, size, most):
        yield publisher.read(buffer[start : start + most])


def _name(replica: Replica, table: int) -> str:
    return f"table {replica.tables[table].name!r}"
