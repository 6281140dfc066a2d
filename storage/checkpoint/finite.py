"""Finds NaN and infinity, in bounded pieces."""

from __future__ import annotations

import numpy as np

# Prefix of learned weights in dense.safetensors; these may not hold infinity either.
LEARNED = "state."
_CHUNK_VALUES = 1 << 20
_BF16_INFINITY = np.uint16(0x7F80)


def first_bad_row(rows: np.ndarray) -> int | None:
    """Returns the index of the first row that holds NaN or infinity, or None. rows: (n, dim) float."""
    step = max(1, _CHUNK_VALUES // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        finite = np.isfinite(rows[start : start + step])
        if not finite.all():
            return start + int(np.argmin(finite.all(axis=1)))
    return None


def weight_fault(array: np.ndarray, dtype: str, *, infinity: bool) -> str | None:
    """Returns what is wrong with a dense weight's values, or None.

    NaN never has a meaning; infinity may (the mask of an attention), if `infinity` allows it. dtype: the safetensors
    name, which tells bfloat16 from uint16.
    """
    if dtype != "BF16" and array.dtype.kind != "f":
        return None
    flat = array.reshape(-1)
    for start in range(0, len(flat), _CHUNK_VALUES):
        part = flat[start : start + _CHUNK_VALUES]
        if dtype == "BF16":
            # All bits of the exponent are set in both, and some of the mantissa in NaN.
            magnitude = part.view(np.uint16) & np.uint16(0x7FFF)
            nan, large = (magnitude > _BF16_INFINITY).any(), (magnitude == _BF16_INFINITY).any()
        else:
            nan, large = np.isnan(part).any(), np.isinf(part).any()
        if nan:
            return "holds NaN"
        if large and not infinity:
            return "holds infinity"
    return None
