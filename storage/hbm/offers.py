"""Ids that lanes tell a card's cache of, until its worker has the time. Any thread; never waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from storage.tiers.arrays import Ids

# What came first is forgotten beyond so many pieces: it is asked for again.
_MISSED, _USED = 256, 1024


class Offers:
    """Pieces are ids of one table."""

    def __init__(self) -> None:
        self._missed: deque[tuple[int, Ids]] = deque(maxlen=_MISSED)
        self._used: deque[tuple[int, Ids]] = deque(maxlen=_USED)
        self._alone: deque[tuple[int, Ids]] = deque(maxlen=_MISSED)

    def put(self, missed: Sequence[tuple[int, Ids]], used: Sequence[tuple[int, Ids]] | None) -> None:
        """missed: were not found. used: a sample of what was asked for, as often as it was; None of a lane that finds
        rows on this card alone.
        """
        if used is None:
            self._alone.extend(missed)
            return
        self._missed.extend(missed)
        self._used.extend(used)

    def alone(self) -> Iterator[tuple[int, Ids]]:
        """Missed by lanes that find rows on this card alone: by table, each id once; those that were put before."""
        return ((table, np.unique(ids)) for table, ids in _taken(self._alone))

    def missed(self) -> Iterator[tuple[int, Ids]]:
        """Missed by lanes that look on other cards too: by table, each id once; those that were put before."""
        return ((table, np.unique(ids)) for table, ids in _taken(self._missed))

    def used(self) -> Iterator[tuple[int, Ids]]:
        """By table, as often as they were put; those that were put before."""
        return _taken(self._used)


def _taken(pieces: deque[tuple[int, Ids]]) -> Iterator[tuple[int, Ids]]:
    wanted: dict[int, list[Ids]] = {}
    for _ in range(len(pieces)):
        try:
            table, ids = pieces.popleft()
        except IndexError:
            break
        wanted.setdefault(table, []).append(ids)
    for table, parts in wanted.items():
        yield table, np.concatenate(parts)
