"""Reads sorted arrays side by side in bounded memory, and tells which of them has the newest entry of an id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import IntegrityError

Ids = NDArray[np.int64]


def ranges(sources: Sequence[Ids], most: int) -> Iterator[list[slice]]:
    """Yields one slice of each source, all of the same range of ids, until every id was in one.

    sources: ids (n,) strictly ascending, which may be mapped files. most: ids in one range, of all sources together,
    give or take one a source.
    """
    total = sum(map(len, sources))
    steps = [max(1, most * len(ids) // max(1, total)) for ids in sources]
    at = [0] * len(sources)
    while True:
        ahead = [start + step for start, step in zip(at, steps, strict=True)]
        ends = [int(ids[place]) for ids, place in zip(sources, ahead, strict=True) if place < len(ids)]
        # Ids below the smallest of them come now; without a source that has more than its step left, all do.
        stops = [
            len(ids) if not ends else start + int(np.searchsorted(ids[start : place + 1], min(ends)))
            for ids, start, place in zip(sources, at, ahead, strict=True)
        ]
        if any(stop > start for start, stop in zip(at, stops, strict=True)):
            yield [slice(start, stop) for start, stop in zip(at, stops, strict=True)]
        if not ends:
            return
        if stops == at:
            raise IntegrityError("the ids of a table are not strictly ascending; the checkpoint was changed")
        at = stops


@dataclass(frozen=True)
class Newest:
    """The newest entry of each id among several parts, m ids."""

    #: (m,) int64, ascending.
    ids: Ids
    #: (m,) the part that has the newest entry.
    owners: NDArray[np.intp]
    #: (m,) its place there.
    places: NDArray[np.intp]

    @cached_property
    def _picks(self) -> list[tuple[int, NDArray[np.intp], NDArray[np.intp]]]:
        """Part, places of its entries among the ids, their places in the part."""
        owners = np.flatnonzero(np.bincount(self.owners)).tolist()
        found = [(owner, np.flatnonzero(self.owners == owner)) for owner in owners]
        return [(owner, mine, self.places[mine]) for owner, mine in found]

    def kept(self, which: NDArray[np.bool_]) -> Newest:
        """Returns the flagged ids, (m,), alone."""
        return self if which.all() else Newest(self.ids[which], self.owners[which], self.places[which])

    def of(self, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Returns the entries of these ids, by ascending ids. arrays: one for each part."""
        out = np.empty((len(self.ids), *arrays[0].shape[1:]), arrays[0].dtype)
        for owner, mine, places in self._picks:
            if len(mine) == len(out) == len(arrays[owner]):
                return arrays[owner]
            out[mine] = arrays[owner][places]
        return out


def newest(parts: Sequence[Ids]) -> Newest:
    """Returns the distinct ids of the parts, oldest first, each with its entry in the last part that has it.

    parts: ids ascending. Raises IntegrityError for a part that is not.
    """
    for ids in parts:
        if np.any(ids[1:] <= ids[:-1]):
            raise IntegrityError("the ids of a table are not strictly ascending; the checkpoint was changed")
    filled = [number for number, ids in enumerate(parts) if len(ids)]
    if len(filled) == 1:
        ids = parts[filled[0]]
        return Newest(ids, np.full(len(ids), filled[0], np.intp), np.arange(len(ids), dtype=np.intp))
    every = np.concatenate([np.empty(0, np.int64), *parts])
    owners = np.repeat(np.arange(len(parts), dtype=np.intp), [len(ids) for ids in parts])
    places = np.concatenate([np.empty(0, np.intp), *(np.arange(len(ids), dtype=np.intp) for ids in parts)])
    order = np.argsort(every, kind="stable")
    ordered = every[order]
    last = order[np.append(ordered[1:] != ordered[:-1], True)] if len(order) else order
    return Newest(every[last], owners[last], places[last])
