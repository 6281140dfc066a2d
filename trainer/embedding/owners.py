"""Divides ids among the ranks of a training. N ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

# An id belongs to one of so many buckets, and a bucket to one rank.
_BUCKET_BITS = 12


def owners(ids: Ids, ranks: int) -> NDArray[np.int64]:
    """Returns the rank (N,) of each id. The mixing is that of MurmurHash3 (Appleby, 2011)."""
    mixed = ids.view(np.uint64).copy()
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(33)
    buckets = (mixed >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)
    return (buckets * ranks) >> _BUCKET_BITS
