"""Follows the chains of ids without a row: each level is asked only for the ids that the levels before did not answer.

A lookup whose ids all have rows asks no level. Every level is read under the mask of the lookup, so all rows of a
request come from one snapshot. N ids of a feature, M of them absent, D dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from storage._table import Lookup
from storage.errors import ConfigError
from storage.features import Jagged
from storage.features.fallback import MEAN_ID, UNRESOLVED, level_ids
from storage.specs import LookupLevel, LookupSpec, TableSpec

# States of rows, as `read` gives them.
ABSENT, FOUND, LATE = 0, 1, 2

# Maps ids (M,) of a table to rows (M, D) float32 and states (M,) uint8; rows of the last two states are zeros.
Read = Callable[[int, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class FellBack:
    """Says which ids of a feature had no row of their own in a lookup, and which level answered for them."""

    #: (M,) int64, places among the values of the feature.
    places: np.ndarray
    #: (M,) uint8: 1 for the first level and so on; one more than there are levels where none had a row; UNRESOLVED.
    levels: np.ndarray
    #: Places of ids whose own row did not come in time. They read as zeros and never fall back.
    unresolved: np.ndarray

    def level_of(self, values: int) -> np.ndarray:
        """Returns the level of each of the feature's values, (N,) uint8; 0 is its own row."""
        found = np.zeros(values, np.uint8)
        found[self.places] = self.levels
        found[self.unresolved] = UNRESOLVED
        return found


@dataclass(frozen=True)
class _Level:
    spec: LookupLevel
    #: Place of the feature whose ids it takes, None for the mean.
    feature: int | None
    table: int


class Chains:
    """The chains of the features of a plan. Raises ConfigError for a level that a lookup cannot follow."""

    def __init__(self, entries: Sequence[tuple[LookupSpec, int, int]], tables: Sequence[TableSpec]) -> None:
        places = {spec.feature: place for place, (spec, _, _) in enumerate(entries)}
        numbers = {table.name: number for number, table in enumerate(tables)}
        self._chains: dict[int, list[_Level]] = {}
        for place, (spec, _, dim) in enumerate(entries):
            for level in spec.fallback:
                number = numbers.get(level.table)
                if number is None or (level.feature and level.feature not in places):
                    missing = f"no table {level.table!r}" if number is None else f"no feature {level.feature!r}"
                    raise _refused(spec, level, f"there is {missing} in this lookup")
                if tables[number].dim != dim:
                    raise _refused(spec, level, f"its rows have {tables[number].dim} values, expected {dim}")
                made = _Level(level, places.get(level.feature), number)
                self._chains.setdefault(place, []).append(made)
        #: Places of the features that have a chain.
        self.features = tuple(self._chains)

    def follow(self, lookup: Lookup, ids: Sequence[Jagged], read: Read) -> dict[int, FellBack]:
        """Gives a settled lookup rows for its absent ids. Returns what was read for each feature with a chain."""
        found: dict[int, FellBack] = {}
        for place, levels in self._chains.items():
            absent, late = lookup.absent_places(place), lookup.unresolved_places(place)
            if len(absent) or len(late):
                found[place] = self._follow(lookup, place, levels, ids, absent, late, read)
        return found

    def _follow(
        self,
        lookup: Lookup,
        place: int,
        levels: Sequence[_Level],
        ids: Sequence[Jagged],
        absent: np.ndarray,
        late: np.ndarray,
        read: Read,
    ) -> FellBack:
        rows: np.ndarray | None = None
        has_row = np.zeros(len(absent), np.uint8)
        answered = np.full(len(absent), len(levels) + 1, np.uint8)
        left = np.arange(len(absent))
        for number, level in enumerate(levels, start=1):
            if not len(left):
                break
            if level.feature is None:
                (row, states), asked = read(level.table, np.array([MEAN_ID])), left
                row, states = np.repeat(row, len(left), axis=0), np.repeat(states, len(left))
            else:
                its, has = level_ids(ids[place], absent[left], ids[level.feature], level.spec.parallel)
                asked = left[has]
                row, states = read(level.table, its[has])
            if rows is None:
                rows = np.zeros((len(absent), row.shape[1]), np.float32)
            ends = states != ABSENT
            at = asked[ends]
            rows[at], has_row[at] = row[ends], 1
            answered[at] = np.where(states[ends] == FOUND, number, UNRESOLVED)
            left = left[has_row[left] == 0]
        if rows is not None:
            lookup.fall_back(place, rows, has_row)
        return FellBack(absent, answered, late)


def _refused(spec: LookupSpec, level: LookupLevel, why: str) -> ConfigError:
    field = f"features.{spec.feature}.fallback"
    return ConfigError(f"feature {spec.feature!r}: it falls back to {level.name!r}, but {why}", field=field)
