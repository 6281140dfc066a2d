"""Ids that sessions report to a GPU's cache, kept until its worker has the time. Thread-safe; never waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from storage.tiers.arrays import Ids

# The oldest pieces beyond these bounds are forgotten: their ids are asked for again.
_MISSED, _USED = 256, 1024


class Offers:
    """Pieces of ids, each of one table."""

    def __init__(self) -> None:
        self._missed: deque[tuple[int, Ids]] = deque(maxlen=_MISSED)
        self._used: deque[tuple[int, Ids]] = deque(maxlen=_USED)
        self._alone: deque[tuple[int, Ids]] = deque(maxlen=_MISSED)

    def put(self, missed: Sequence[tuple[int, Ids]], used: Sequence[tuple[int, Ids]] | None) -> None:
        """Adds the ids of a batch.

        missed: ids that were not found. used: a sample of the ids asked for, as often as they were; None from a session
        that finds rows on this GPU alone.
        """
        if used is None:
            self._alone.extend(missed)
            return
        self._missed.extend(missed)
        self._used.extend(used)

    def alone(self) -> Iterator[tuple[int, Ids]]:
        """Yields ids missed by sessions that find rows on this GPU alone: by table, each id once, those put before the
        call.
        """
        return ((table, np.unique(ids)) for table, ids in _taken(self._alone))

    def missed(self) -> Iterator[tuple[int, Ids]]:
        """Yields ids missed by sessions that look on other GPUs too: by table, each id once, those put before
        the call.
        """
        return ((table, np.unique(ids)) for table, ids in _taken(self._missed))

    def used(self) -> Iterator[tuple[int, Ids]]:
        """Yields used ids by table, as often as they were put; those put before the call."""
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
