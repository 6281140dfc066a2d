"""Ids that sessions ask the cache of a GPU for, until its worker has the time. Any thread; never waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from storage.tiers.arrays import Ids

# Beyond so many pieces the oldest ones are forgotten: what is wanted is asked for again.
_MOST = 256


class Offers:
    """Pieces of ids, each of one table."""

    def __init__(self, most: int = _MOST) -> None:
        """most: pieces that are kept."""
        self._pieces: deque[tuple[int, Ids]] = deque(maxlen=most)

    def put(self, pieces: Sequence[tuple[int, Ids]]) -> None:
        """By table; an id may come more than once."""
        self._pieces.extend(pieces)

    def take(self) -> Iterator[tuple[int, Ids]]:
        """By table, each id as often as it was put; those that were put before."""
        wanted: dict[int, list[Ids]] = {}
        for _ in range(len(self._pieces)):
            try:
                table, ids = self._pieces.popleft()
            except IndexError:
                break
            wanted.setdefault(table, []).append(ids)
        for table, pieces in wanted.items():
            yield table, np.concatenate(pieces)
