"""Encodes use counts logarithmically in one byte: exact to 31, then to a sixteenth, as the trainer publishes them."""

from __future__ import annotations

import numpy as np


def uses_of_codes() -> np.ndarray:
    """Returns (256,) float64, the least use count that each code stands for."""
    codes = np.arange(256)
    large = (16.0 + (codes & 15)) * 2.0 ** np.maximum(0, (codes >> 4) - 1)
    return np.where(codes < 16, codes, large).astype(np.float64)


def codes_of_uses(uses: np.ndarray) -> np.ndarray:
    """Returns (n,) uint8, for each count the largest code that stands for no more. uses: (n,) counts, 0 or more."""
    return (np.searchsorted(uses_of_codes(), uses, side="right") - 1).astype(np.uint8)
