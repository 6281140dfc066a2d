"""Chains of fallbacks: which row an id without one reads, level by level, in training and in serving alike.

A level is another feature of ids of the same row of the request, which lends the row of its own id, or `mean`, the mean
of the feature's own table. Each use of an id has its own chain: in a bag the level has one id for all of its ids, or a
list that is parallel to theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from storage.errors import InvalidInput
from storage.features.batch import Jagged

#: The level that is no feature.
MEAN = "mean"
#: The id of the one row of a table's means.
MEAN_ID = 0
#: Levels that a chain has at most.
MOST_LEVELS = 8
#: What a level says of an id whose rows did not come in time, and of a place of an array that no id has.
UNRESOLVED, NO_ID = 254, 255
_SUFFIX = "-mean"


def mean_table(table: str) -> str:
    """Returns the name of the table that holds the mean of another one's rows."""
    return table + _SUFFIX


def check_parallel(name: str, own: Jagged, levels: Mapping[str, Jagged]) -> None:
    """Raises InvalidInput, naming the row, where a parallel level has another number of ids than the feature `name`."""
    lengths = own.lengths()
    for level, bags in levels.items():
        given = bags.lengths()
        wrong = np.flatnonzero((given != 0) & (given != lengths))
        if len(wrong):
            row = int(wrong[0])
            raise InvalidInput(
                f"feature {level!r}, row {row}: has {given[row]} ids, which stand one by one for the {lengths[row]} of "
                f"{name!r}; expected as many, or none",
                field=level,
            )


def level_ids(own: Jagged, places: np.ndarray, level: Jagged, parallel: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids (M,) of a level that stand for the ids at `places` (M,) of a feature, and whether there is one.

    Where there is none, the id is 0. The lengths of the bags were checked (`check_parallel`).
    """
    bags = np.searchsorted(own.offsets, places, side="right") - 1
    starts = level.offsets[bags]
    has = level.offsets[bags + 1] > starts
    at = starts + (places - own.offsets[bags]) if parallel else starts
    ids = np.zeros(len(places), np.int64)
    ids[has] = level.values[at[has]]
    return ids, has
