"""Encoded rows as SSD takes and gives them: whole words of 4 bytes, whatever they mean. n rows, W words a row."""

from __future__ import annotations

import numpy as np


def words_of(encoded: np.ndarray) -> np.ndarray:
    """(n, row_bytes) uint8 -> (n, W) float32, the same bytes."""
    return np.ascontiguousarray(encoded).view(np.float32)


def rows_of(words: np.ndarray) -> np.ndarray:
    """(n, W) float32 -> (n, row_bytes) uint8, the same bytes."""
    return np.ascontiguousarray(words).view(np.uint8)
