"""Counts which level of its chain each id without a row read, and tells it to a request that asks.

B rows of a batch, L ids of the longest bag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from storage.features import FeatureSpec, Jagged
from storage.features.fallback import MOST_LEVELS, NO_ID, UNRESOLVED
from storage.tiers.chains import FellBack

#: What the output of a feature's levels begins with.
PREFIX = "fallback_level."
# Counts of a feature: its own row, each level, no row at all; unresolved is last.
_COLUMNS = MOST_LEVELS + 3


@dataclass(frozen=True)
class ChainedFeature:
    """A feature with a chain, as its levels are counted and answered."""

    name: str
    #: What each level is called: the feature itself, those of its chain, "absent" and "unresolved".
    levels: tuple[str, ...]
    #: Whether a row has one id at most.
    is_single: bool
    #: Ids of a bag that are looked up; 0: all.
    length: int

    @property
    def output(self) -> str:
        """The name of the output of its levels."""
        return PREFIX + self.name

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape of that output without the batch."""
        return () if self.is_single else (-1,)


def chained_features(spec: FeatureSpec) -> tuple[ChainedFeature, ...]:
    """Returns the features of a spec that have a chain, in its order."""
    return tuple(
        ChainedFeature(
            feature.name,
            (feature.name, *feature.fallback, "absent", "unresolved"),
            spec.flow(feature.name).high <= 1,
            feature.length,
        )
        for feature in spec.ids_features
        if feature.fallback
    )


@dataclass(frozen=True)
class _Bags:
    """The ids of a feature in a batch, what they read, and the bag of each row; None: bag i belongs to row i."""

    bags: Jagged
    fell: FellBack | None
    rows: np.ndarray | None


class BatchLevels:
    """The levels that one batch read, by feature."""

    def __init__(self) -> None:
        self._of: dict[str, _Bags] = {}

    def add(self, name: str, bags: Jagged, fell: FellBack | None, rows: np.ndarray | None) -> None:
        """Adds the lookup of a feature. rows: (B,) the bag of each row, where rows share bags."""
        self._of[name] = _Bags(bags, fell, rows)

    def of_rows(self, feature: ChainedFeature, first: int, count: int) -> np.ndarray:
        """Returns the levels of some rows: (B,) uint8 of a feature with one id, else (B, L); NO_ID where there is none.

        first, count: which rows of the batch.
        """
        found = self._of[feature.name]
        bags, rows = found.bags, np.arange(first, first + count)
        if found.rows is not None:
            rows = found.rows[rows]
        values = len(bags.values)
        levels = np.zeros(values, np.uint8) if found.fell is None else found.fell.level_of(values)
        starts, lengths = bags.offsets[rows], bags.offsets[rows + 1] - bags.offsets[rows]
        if feature.length:
            lengths = np.minimum(lengths, feature.length)
        width = 1 if feature.is_single else int(lengths.max(initial=0))
        out = np.full((count, width), NO_ID, np.uint8)
        for place in range(width):
            longer = lengths > place
            out[longer, place] = levels[starts[longer] + place]
        return out[:, 0] if feature.is_single else out


class LevelCounts:
    """Counts ids by feature and level. One thread counts, any thread reads."""

    def __init__(self, features: Sequence[ChainedFeature]) -> None:
        self.features = {feature.name: place for place, feature in enumerate(features)}
        self._features = tuple(features)
        #: Features by the name of the output of their levels.
        self.by_output = {feature.output: feature for feature in features}
        #: (features, columns) uint64.
        self.counted = np.zeros((len(self._features), _COLUMNS), np.uint64)

    def take(
        self,
        levels: BatchLevels,
        names: Sequence[str],
        ids: Mapping[str, Jagged],
        fallback: Mapping[int, FellBack],
        rows: np.ndarray | None = None,
    ) -> None:
        """Counts a lookup, and adds it to the levels of its batch.

        names: features of the lookup, by whose places `fallback` goes. rows: as for `BatchLevels.add`.
        """
        for place, name in enumerate(names):
            number = self.features.get(name)
            if number is None:
                continue
            bags, fell = ids[name], fallback.get(place)
            levels.add(name, bags, fell, rows)
            length = self._features[number].length
            used = int(np.minimum(bags.lengths(), length).sum()) if length else len(bags.values)
            if fell is not None:
                codes = np.bincount(fell.levels, minlength=UNRESOLVED + 1)
                late = int(codes[UNRESOLVED]) + len(fell.unresolved)
                self.counted[number, :-1] += codes[: _COLUMNS - 1].astype(np.uint64)
                self.counted[number, -1] += np.uint64(late)
                used -= len(fell.places) + len(fell.unresolved)
            self.counted[number, 0] += np.uint64(used)


def named_counts(feature: ChainedFeature, counted: np.ndarray) -> list[tuple[int | str, str, int]]:
    """Returns level, name and count of each level of a feature. counted: its row of `LevelCounts.counted`."""
    *levels, unresolved = feature.levels
    rows: list[tuple[int | str, str, int]] = [
        (number, name, int(counted[number])) for number, name in enumerate(levels)
    ]
    return [*rows, ("unresolved", unresolved, int(counted[-1]))]
