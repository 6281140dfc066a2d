"""Tells the rounding of lower precision from other small differences."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from emberline.proving.comparison import paired

# Each of these is a bound on what two kernels of one precision may differ in, with the same inputs rounded.
_SIZE, _SHARE, _CORRELATION = 2.0, 0.9, 0.5
# What is below this part of the usual rounding counts as none.
_NONE = 0.02
_LEAST_ROWS = 8


def looks_rounded(
    old: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray], lowered: Mapping[str, np.ndarray]
) -> bool:
    """Returns whether old answers differ from the own ones as those of lower precision do, in every output.

    Another kernel of the same precision rounds the same weights and inputs, so its differences lie in nearly all rows,
    are about as large, and go the same way more often than not. Stale rows lie in few rows, and a changed weight goes
    a way of its own.
    """
    pairs = paired(old, own)
    return all(_is_rounding(_flat(values), _flat(own[name]), _flat(lowered[name])) for name, values in pairs.items())


def _is_rounding(old: np.ndarray, own: np.ndarray, lowered: np.ndarray) -> bool:
    theirs, ours = old - own, lowered - own
    if old.shape != own.shape or len(old) < _LEAST_ROWS or not (np.isfinite(theirs) & np.isfinite(ours)).all():
        return False
    if not theirs.any() and not ours.any():
        return True
    most, usual = np.abs(ours).max(), np.median(np.abs(ours))
    if np.abs(theirs).max() > _SIZE * most or np.median(np.abs(theirs)) > _SIZE * usual:
        return False
    touched = (np.abs(theirs) > _NONE * usual).mean()
    if touched < _SHARE * (np.abs(ours) > _NONE * usual).mean() or not theirs.std() or not ours.std():
        return False
    return bool(np.corrcoef(theirs, ours)[0, 1] >= _CORRELATION)


def _flat(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float64).reshape(-1)
