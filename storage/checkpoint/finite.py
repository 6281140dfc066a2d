"""Finds NaN and infinity, in bounded pieces."""

from __future__ import annotations

import numpy as np

# Prefix of learned weights in dense.safetensors; these may not hold infinity either.
LEARNED = "state."
_CHUNK_VALUES = 1 << 20


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
    if dtype == "BF16":
        # bfloat16 has the sign, exponent and leading bits of float32.
        array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if array.dtype.kind != "f":
        return None
    if np.isnan(array).any():
        return "holds NaN"
    if not infinity and np.isinf(array).any():
        return "holds infinity"
    return None
