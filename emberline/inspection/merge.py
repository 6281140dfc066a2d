"""Reads sorted arrays side by side in bounded memory, and tells which of them has the newest entry of an id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import IntegrityError

Ids = NDArray[np.int64]


def ranges(sources: Sequence[Ids], most: int) -> Iterator[list[slice]]:
    """Yields one slice of each source, all of the same range of ids, until every id was in one.

    sources: ids (n,) strictly ascending, which may be mapped files. most: ids of a source in one range.
    """
    at = [0] * len(sources)
    while True:
        ends = [int(ids[start + most]) for ids, start in zip(sources, at, strict=True) if start + most < len(ids)]
        # Ids below `end` come now; without a source that has more than `most` left, all do.
        stops = [
            len(ids) if not ends else start + int(np.searchsorted(ids[start : start + most + 1], min(ends)))
            for ids, start in zip(sources, at, strict=True)
        ]
        if any(stop > start for start, stop in zip(at, stops, strict=True)):
            yield [slice(start, stop) for start, stop in zip(at, stops, strict=True)]
        if not ends:
            return
        at = stops


def newest(parts: Sequence[Ids]) -> tuple[Ids, NDArray[np.intp], NDArray[np.intp]]:
    """Returns the distinct ids (m,) ascending of the parts, oldest first, with the newest part of each and its place.

    parts: ids ascending. Raises IntegrityError for a part that is not.
    """
    for ids in parts:
        if np.any(ids[1:] <= ids[:-1]):
            raise IntegrityError("the ids of a table are not strictly ascending; the checkpoint was changed")
    filled = [number for number, ids in enumerate(parts) if len(ids)]
    if len(filled) == 1:
        ids = parts[filled[0]]
        return ids, np.full(len(ids), filled[0], np.intp), np.arange(len(ids), dtype=np.intp)
    every = np.concatenate([np.empty(0, np.int64), *parts])
    owners = np.repeat(np.arange(len(parts), dtype=np.intp), [len(ids) for ids in parts])
    places = np.concatenate([np.empty(0, np.intp), *(np.arange(len(ids), dtype=np.intp) for ids in parts)])
    order = np.argsort(every, kind="stable")
    ordered = every[order]
    last = order[np.append(ordered[1:] != ordered[:-1], True)] if len(order) else order
    return every[last], owners[last], places[last]


def gather(arrays: Sequence[NDArray[Any]], owners: NDArray[np.intp], places: NDArray[np.intp]) -> NDArray[Any]:
    """Returns the entries of the arrays that `newest` chose, in its order. arrays: one for each part."""
    (first, *others) = np.unique(owners)
    if not others and np.array_equal(places, np.arange(len(arrays[first]))):
        return arrays[first]
    out = np.empty((len(owners), *arrays[0].shape[1:]), arrays[0].dtype)
    for owner in (first, *others):
        mine = owners == owner
        out[mine] = arrays[owner][places[mine]]
    return out
