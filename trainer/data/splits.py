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

        A rank has as many of a smaller batch at most. Where rows cannot be divided evenly, the last ranks have a row
        more, and of fewer rows than ranks the first ranks have none.
        """
        even, more = divmod(rows, self.ranks)
        first = self.rank * even + max(0, self.rank - self.ranks + more)
        return first, first + even + (self.rank >= self.ranks - more)

    def owners(self, first: int, last: int, batch_size: int, total: int) -> NDArray[np.int16]:
        """Returns the rank of each of the rows `first` to `last` - 1 of an epoch.

        total: rows of the epoch.
        """
        whole = total // batch_size * batch_size
        shifted = np.roll(self._owners(batch_size), -(first % batch_size))
        in_whole = np.resize(shifted, max(0, min(last, whole) - first))
        rest = self._owners(total - whole)[max(0, first - whole) : max(0, last - whole)]
        return np.concatenate((in_whole, rest))

    def places(self, first: int, last: int, batch_size: int, total: int) -> NDArray[Any]:
        """Returns which of the rows `first` to `last` - 1 of an epoch are the rank's, counted from `first`.

        total: rows of the epoch.
        """
        return np.flatnonzero(self.owners(first, last, batch_size, total) == self.rank)

    def _owners(self, rows: int) -> NDArray[np.int16]:
        """Returns the rank of each row of a batch."""
        bounds = (Split(rank, self.ranks).bounds(rows) for rank in range(self.ranks))
        counts = [last - first for first, last in bounds]
        return np.repeat(np.arange(self.ranks, dtype=np.int16), counts)
