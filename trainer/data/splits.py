"""Divides each batch among the ranks that train one model together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Split:
    """Says which rows of a batch one rank of several trains on: consecutive ones, about as many as each other rank.

    So a batch holds the same rows for any number of ranks, and an epoch each row once.
    """

    #: The number of this rank, from 0.
    rank: int = 0
    #: The number of ranks.
    ranks: int = 1

    def bounds(self, rows: int) -> tuple[int, int]:
        """Returns the first row of the rank and the one after its last, of a batch of so many rows.

        A rank has as many of a smaller batch at most.
        """
        first, last = self._bounds(np.array(rows))
        return int(first), int(last)

    def places(self, first: int, last: int, batch_size: int, total: int) -> NDArray[Any]:
        """Returns which of the rows `first` to `last` - 1 of an epoch are the rank's, counted from `first`.

        total: rows of the epoch.
        """
        rows = np.arange(first, last)
        begins = rows // batch_size * batch_size
        sizes = np.minimum(batch_size, total - begins)
        first_of_own, end_of_own = self._bounds(sizes)
        places = rows - begins
        return np.flatnonzero((places >= first_of_own) & (places < end_of_own))

    def _bounds(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns `bounds` of batches. Where they cannot be divided evenly, the last ranks have a row more."""
        even, more = np.divmod(rows, self.ranks)
        before = np.maximum(0, self.rank - self.ranks + more)
        first = self.rank * even + before
        return first, first + even + (self.rank >= self.ranks - more)
