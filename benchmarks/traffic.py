"""Draws ids as traffic does: uniform, Zipf, and as often as production reuses them.

A popularity (loadtest.popularity) gives the probability of each rank, hottest first; a shuffled numbering maps ranks to
rows, so that hot rows lie anywhere in memory and on disk.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loadtest.popularity import Popularity
from storage.tiers.planning.use_codes import codes_of_uses

Array = np.ndarray[Any, Any]
BATCH = 13_312  # 26 features of 512 samples


def random_ids(count: int, seed: int = 1) -> Array:
    """Returns (count,) int64 unique ids, from 1 to 2^63 - 1, in random order."""
    rng = np.random.default_rng(seed)
    ids = np.empty(0, np.int64)
    while len(ids) < count:
        ids = np.unique(np.concatenate([ids, rng.integers(1, 2**63 - 1, count - len(ids) + 1024, dtype=np.int64)]))
    rng.shuffle(ids)
    return ids[:count]


class Traffic:
    """Draws batches of row numbers by popularity; `numbering[rank]` is the row that has a rank."""

    def __init__(self, popularity: Popularity, seed: int = 2) -> None:
        self.popularity = popularity
        self._rng = np.random.default_rng(seed)
        self.numbering = self._rng.permutation(popularity.count)

    def numbers(self, count: int) -> Array:
        """Returns (count,) int64 row numbers."""
        return self.numbering[self.popularity.ranks(self._rng, count)]

    def batches(self, count: int, size: int = BATCH) -> Array:
        """Returns (count, size) int64 row numbers."""
        return self.numbers(count * size).reshape(count, size)

    def replace_hot_set(self) -> None:
        """Assigns every rank to another row from now on."""
        self.numbering = self._rng.permutation(self.popularity.count)


def expected_codes(popularity: Popularity) -> Array:
    """Returns (n,) use codes by rank, as training would have counted them: the coldest rank is seen once."""
    weights = popularity.weights()
    return codes_of_uses(np.minimum(weights / weights[-1], 1e6))
