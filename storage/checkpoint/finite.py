"""Finds NaN and infinity, in bounded pieces."""

from __future__ import annotations

import numpy as np

# Prefix of learned weights in dense.safetensors; these may not hold infinity either.
LEARNED = "state."
_CHUNK_VALUES = 1 << 20


def first_bad_row(rows: np.ndarray) -> int | None:
    """Returns the index of the first row that holds NaN or infinity, or None. rows: (n, dim) float."""
    from storage._table import first_not_finite

    step = max(1, _CHUNK_VALUES // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        piece = rows[start : start + step]
        if piece.dtype == np.float32:
            if (bad := first_not_finite(np.ascontiguousarray(piece))) is not None:
                return start + bad
            continue
        finite = np.isfinite(piece)
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
    from storage._table import not_finite

    flat = array.reshape(-1)
    for start in range(0, len(flat), _CHUNK_VALUES):
        part = flat[start : start + _CHUNK_VALUES]
        if dtype == "BF16" or part.dtype == np.float32:
            nan, large = not_finite(part.view(np.uint16) if dtype == "BF16" else part, dtype == "BF16")
        else:
            nan, large = bool(np.isnan(part).any()), bool(np.isinf(part).any())
        if nan:
            return "holds NaN"
        if large and not infinity:
            return "holds infinity"
    return None
