"""Holds the ids that sessions want in the cache of a GPU until its worker takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from storage.tiers.arrays import Ids

# Beyond this number of pieces the oldest ones are forgotten: ids that are wanted are offered again.
_MOST = 256


class Offers:
    """A bounded queue of pieces of ids, each of one table. Thread-safe; no call waits."""

    def __init__(self, most: int = _MOST) -> None:
        """Makes an empty queue. most: the pieces that are kept."""
        self._pieces: deque[tuple[int, Ids]] = deque(maxlen=most)

    def put(self, pieces: Sequence[tuple[int, Ids]]) -> None:
        """Adds pieces, each a table and its ids; an id may come more than once."""
        self._pieces.extend(pieces)

    def take(self) -> Iterator[tuple[int, Ids]]:
        """Removes the pieces that were put before, and yields their ids by table, each as often as it was put."""
        wanted: dict[int, list[Ids]] = {}
        for _ in range(len(self._pieces)):
            try:
                table, ids = self._pieces.popleft()
            except IndexError:
                break
            wanted.setdefault(table, []).append(ids)
        for table, pieces in wanted.items():
            yield table, np.concatenate(pieces)
