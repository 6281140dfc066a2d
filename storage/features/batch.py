"""Defines the results of the feature engine: dense groups and jagged ids. B rows, W width of a group, N ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import InvalidInput

if TYPE_CHECKING:
    from storage._features import Batch

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


class FeatureBatch:
    """The features of a batch of rows.

    What the engine made is turned into arrays when they are first asked for: who reads `native` in C++ needs none.
    """

    __slots__ = ("_dense", "_ids", "_names", "batch", "native")

    def __init__(self, batch: int, dense: dict[str, Array], ids: dict[str, Jagged]) -> None:
        #: The number of rows, B.
        self.batch = batch
        #: The results of the engine that this was made from, if it was; they are the same as `dense` and `ids`.
        self.native: Batch | None = None
        self._names: tuple[Sequence[str], Sequence[str]] = ((), ())
        self._dense: dict[str, Array] | None = dense
        self._ids: dict[str, Jagged] | None = ids

    @classmethod
    def of(cls, native: Batch, groups: Sequence[str], features: Sequence[str]) -> FeatureBatch:
        """Returns the results of the engine. groups, features: names of the dense groups and of the features of ids."""
        made = cls.__new__(cls)
        made.batch = native.rows
        made.native = native
        made._names = (groups, features)
        made._dense = made._ids = None
        return made

    @property
    def dense(self) -> dict[str, Array]:
        """Maps each group to (B, W) float32."""
        if self._dense is None:
            assert self.native is not None
            self._dense = dict(zip(self._names[0], self.native.dense(), strict=True))
        return self._dense

    def integers(self, feature: str) -> Array:
        """Returns the integers of a feature, (B, W) int64. Raises InvalidInput when a row has not all of them."""
        bags = self.ids[feature]
        count = len(bags.values) // max(1, self.batch)
        if len(bags.values) and not np.array_equal(bags.offsets, np.arange(self.batch + 1) * count):
            raise InvalidInput(f"feature {feature!r}: a row has not {count} integers", field=feature)
        return bags.values.reshape(self.batch, count)

    @property
    def ids(self) -> dict[str, Jagged]:
        """Maps each feature of ids to its B bags, and each of integers to as many values in every row.

        Features whose bags have the same ends may share the array of offsets.
        """
        if self._ids is None:
            assert self.native is not None
            made = zip(self._names[1], self.native.ids(), strict=True)
            self._ids = {name: Jagged(*arrays) for name, arrays in made}
        return self._ids


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
