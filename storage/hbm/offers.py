"""Ids that lanes tell a card's cache of, until its worker has the time. Any thread; never waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from storage.tiers.base import Ids

# What came first is forgotten beyond so many pieces: it is asked for again.
_MISSED, _USED = 256, 1024


class Offers:
    """Pieces are ids of one table."""

    def __init__(self) -> None:
        self._missed: deque[tuple[int, Ids]] = deque(maxlen=_MISSED)
        self._used: deque[tuple[int, Ids]] = deque(maxlen=_USED)

    def put(self, missed: Sequence[tuple[int, Ids]], used: Sequence[tuple[int, Ids]] = ()) -> None:
        """missed: were found on no card. used: a sample of what was asked for, as often as it was."""
        self._missed.extend(missed)
        self._used.extend(used)

    def missed(self) -> Iterator[tuple[int, Ids]]:
        """By table, each id once; those that were put before."""
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
