"""Defines the results of the feature engine: dense groups and jagged ids. B rows, W width of a group, N ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storage.errors import InvalidInput

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(slots=True)
class Jagged:
    """The ids of a feature as B bags; bag i is values[offsets[i]:offsets[i + 1]]."""

    #: (N,) int64.
    values: Array
    #: (B + 1,) int64.
    offsets: Array
    #: (N,) float32 for a feature with pooling weighted; None for any other.
    weights: Array | None = None

    def lengths(self) -> Array:
        """Returns the number of ids of each bag, (B,) int64."""
        return np.diff(self.offsets)


@dataclass(slots=True)
class FeatureBatch:
    """The features of a batch of rows."""

    #: The number of rows, B.
    batch: int
    #: Maps each group to (B, W) float32.
    dense: dict[str, Array]
    #: Maps each feature to its B bags.
    ids: dict[str, Jagged]


def concat_batches(batches: Sequence[FeatureBatch]) -> FeatureBatch:
    """Concatenates batches of one engine; returns a single batch as it is."""
    if not batches:
        raise InvalidInput("concat_batches needs at least one batch")
    first = batches[0]
    if len(batches) == 1:
        return first
    for other in batches[1:]:
        if other.dense.keys() != first.dense.keys() or other.ids.keys() != first.ids.keys():
            raise InvalidInput("concat_batches: the batches have different features; they come from different specs")
    dense = {name: np.concatenate([batch.dense[name] for batch in batches]) for name in first.dense}
    ids = {name: _concat([batch.ids[name] for batch in batches]) for name in first.ids}
    return FeatureBatch(sum(batch.batch for batch in batches), dense, ids)


def join_offsets(parts: Sequence[Array]) -> Array:
    """Returns the offsets of concatenated bags. parts: (n + 1,) int64 each, from 0 on."""
    lengths = np.concatenate([np.diff(part) for part in parts])
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _concat(parts: Sequence[Jagged]) -> Jagged:
    weights = [part.weights for part in parts if part.weights is not None]
    return Jagged(
        np.concatenate([part.values for part in parts]),
        join_offsets([part.offsets for part in parts]),
        np.concatenate(weights) if weights else None,
    )
