"""Makes, looks up and computes the features of a user once for all rows of a request.

A request for many items of one user sends its user-side inputs with one row. Features that are made from such inputs
alone are made for that one row. Requests of a batch that have the same user share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from storage.checkpoint.manifest import GraphEntry
from storage.features import Column, FeatureBatch, FeatureEngine, FeatureSpec, Jagged, concat_batches


@dataclass(slots=True)
class SidedFeatures:
    """The features of one request, split by side."""

    #: Features of the user's side, with one row.
    user: FeatureBatch
    #: The other features, with all rows of the request.
    item: FeatureBatch


@dataclass(slots=True)
class SidedBatch:
    """Several requests, split by side.

    Every user has at least one row: a GPU looks up only the users that `rows` names, the host looks up all of them, and
    both must count the same.
    """

    #: Features of U users.
    user: FeatureBatch
    #: Features of B rows.
    item: FeatureBatch
    #: (B,) int64, the user of each row.
    rows: np.ndarray

    def whole(self) -> FeatureBatch:
        """Returns all features, row by row."""
        user = take_rows(self.user, self.rows)
        return FeatureBatch(self.item.batch, {**user.dense, **self.item.dense}, {**user.ids, **self.item.ids})


class UserSide:
    """The split of a spec into the user's side and the rest. Thread-safe."""

    def __init__(self, spec: FeatureSpec, user: FeatureSpec, item: FeatureSpec) -> None:
        #: Names of the features of ids and of integers on the user's side.
        self.features = frozenset(feature.name for feature in user.features if feature.output != "dense")
        #: Names of the groups of dense values on the user's side.
        self.groups = frozenset(user.dense_groups)
        #: True if the halves of the graph were compared with the whole.
        self.is_checked = False
        #: True if they were compared, and agreed.
        self.is_on = False
        self._inputs = frozenset(entry.name for entry in user.inputs)
        self._item_inputs = frozenset(entry.name for entry in item.inputs)
        self._known = frozenset(entry.name for entry in spec.inputs)
        self._user = FeatureEngine(user)
        self._item = FeatureEngine(item)

    @classmethod
    def of(cls, spec: FeatureSpec, graph: GraphEntry) -> UserSide | None:
        """Returns the split of a model; None when no features depend on the user alone, or no others are left."""
        sides = {entry.name: entry.side for entry in spec.inputs}
        own = {
            feature.name
            for feature in spec.features
            if all(sides[name] == "user" for name in _inputs_of(feature.inputs, feature.weights))
        }
        mixed = {feature.group for feature in spec.features if feature.output == "dense" and feature.name not in own}
        own -= {feature.name for feature in spec.features if feature.output == "dense" and feature.group in mixed}
        read = {entry.source for entry in graph.inputs}
        used = {
            feature.group if feature.output == "dense" else feature.name
            for feature in spec.features
            if feature.name in own
        }
        if not used & read or len(own) == len(spec.features):
            return None
        return cls(spec, _part(spec, own), _part(spec, {feature.name for feature in spec.features} - own))

    def places(self, graph: GraphEntry) -> list[int]:
        """Returns the numbers of the graph's inputs on the user's side."""
        return [
            place
            for place, entry in enumerate(graph.inputs)
            if entry.source in (self.groups if entry.kind == "dense" else self.features)
        ]

    def takes(self, columns: Mapping[str, Column], batch: int) -> bool:
        """Returns whether a request has many rows and one user."""
        if batch < 2 or not self.is_on or not columns.keys() <= self._known:
            return False
        rows = [column.rows for name, column in columns.items() if name in self._inputs]
        return bool(rows) and all(count == 1 for count in rows)

    def run(self, columns: Mapping[str, Column], batch: int) -> SidedFeatures:
        """Makes the features of a request that it `takes`. Raises InvalidInput whose field is the input at fault."""
        user = self._user.run({name: column for name, column in columns.items() if name in self._inputs}, 1)
        item = self._item.run({name: column for name, column in columns.items() if name in self._item_inputs}, batch)
        return SidedFeatures(user, item)

    def parts(self, batch: FeatureBatch) -> tuple[FeatureBatch, FeatureBatch]:
        """Splits features into those of the user's side and the rest; both have the rows of the batch."""
        user = FeatureBatch(
            batch.batch,
            {name: values for name, values in batch.dense.items() if name in self.groups},
            {name: bags for name, bags in batch.ids.items() if name in self.features},
        )
        item = FeatureBatch(
            batch.batch,
            {name: values for name, values in batch.dense.items() if name not in self.groups},
            {name: bags for name, bags in batch.ids.items() if name not in self.features},
        )
        return user, item

    def merge(self, requests: Sequence[FeatureBatch | SidedFeatures]) -> SidedBatch:
        """Joins requests; a user that several of them share is there once."""
        users: list[FeatureBatch] = []
        items: list[FeatureBatch] = []
        rows: list[np.ndarray] = []
        known: dict[bytes, int] = {}
        count = 0
        for request in requests:
            if isinstance(request, FeatureBatch):
                user, item = self.parts(request)
                rows.append(np.arange(count, count + request.batch))
            else:
                user, item = request.user, request.item
                key = _key(user) if len(requests) > 1 else b""
                place = known.setdefault(key, count)
                rows.append(np.full(item.batch, place))
                if place != count:
                    items.append(item)
                    continue
            users.append(user)
            items.append(item)
            count += user.batch
        return SidedBatch(concat_batches(users), concat_batches(items), np.concatenate(rows))


def take_rows(batch: FeatureBatch, rows: np.ndarray) -> FeatureBatch:
    """Returns some rows of a batch, in this order; a row may be taken more than once."""
    dense = {name: values[rows] for name, values in batch.dense.items()}
    ids = {name: _take_bags(bags, rows) for name, bags in batch.ids.items()}
    return FeatureBatch(len(rows), dense, ids)


def _take_bags(bags: Jagged, rows: np.ndarray) -> Jagged:
    lengths = bags.lengths()[rows]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    places = np.repeat(bags.offsets[:-1][rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
    return Jagged(bags.values[places], offsets, None if bags.weights is None else bags.weights[places])


def _inputs_of(inputs: Sequence[str], weights: str | None) -> list[str]:
    return [*inputs, *([weights] if weights else [])]


def _part(spec: FeatureSpec, names: set[str]) -> FeatureSpec:
    features = tuple(feature for feature in spec.features if feature.name in names)
    used = {name for feature in features for name in _inputs_of(feature.inputs, feature.weights)}
    return FeatureSpec(inputs=tuple(entry for entry in spec.inputs if entry.name in used), features=features)


def _key(user: FeatureBatch) -> bytes:
    """Returns a key that is equal for equal features and for no others: sizes stand before values."""
    parts: list[bytes] = [values.tobytes() for values in user.dense.values()]
    for bags in user.ids.values():
        parts += [bags.offsets.tobytes(), bags.values.tobytes()]
        if bags.weights is not None:
            parts.append(bags.weights.tobytes())
    return b"".join(parts)
