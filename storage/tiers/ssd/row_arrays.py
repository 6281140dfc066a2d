"""Checks ids and rows for a tier that moves bytes; they are never cast, and rows become encoded ones."""

from __future__ import annotations

import numpy as np

from storage.errors import InvalidInput


def checked_ids(ids: np.ndarray) -> np.ndarray:
    """Returns ids (n,) int64 as a C-contiguous array. Raises InvalidInput for anything else."""
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.ndim != 1:
        raise InvalidInput(f"ids: expected an int64 array of 1 dimension, got {_kind(ids)}", field="ids")
    return np.ascontiguousarray(ids)


def encoded(rows: np.ndarray, count: int) -> np.ndarray:
    """Returns `count` rows as uint8 (n, row_bytes). Raises InvalidInput.

    rows: (n, D) float32, or (n, row_bytes) uint8 as they are stored.
    """
    if (
        not isinstance(rows, np.ndarray)
        or rows.dtype not in (np.float32, np.uint8)
        or rows.ndim != 2
        or len(rows) != count
    ):
        raise InvalidInput(
            f"rows: expected {count} rows, a float32 or uint8 array of 2 dimensions, got {_kind(rows)}", field="rows"
        )
    rows = np.ascontiguousarray(rows)
    return rows if rows.dtype == np.uint8 else rows.reshape(-1).view(np.uint8).reshape(count, rows.shape[1] * 4)


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__
