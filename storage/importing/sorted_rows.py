"""Rows of a table in ascending order of ids, and the check of rows that come twice. n rows, D values of a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from storage.errors import InvalidInput


@dataclass(frozen=True)
class SortedRows:
    """Rows of a table in ascending order of ids, each id once."""

    #: (n,) int64.
    ids: np.ndarray
    #: (n, D) float32.
    rows: np.ndarray
    #: (n,) uint32 or None.
    counts: np.ndarray | None
    #: Rows that were left out here: the same as another one of their id, or older.
    repeated: int = 0
    #: (m,) int64 ascending: ids left out here, since their newest row says that they were removed.
    removed: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


def refuse_different(
    table: str,
    ids: np.ndarray,
    rows: np.ndarray,
    same: np.ndarray,
    file_of: Callable[[int], str],
    steps: np.ndarray | None = None,
    removed: np.ndarray | None = None,
) -> None:
    """Raises InvalidInput for two different rows of an id, of one step.

    ids: (n,) ascending. same: (n - 1,) bool, whether an id is the one before it. file_of: returns the file of a row.
    steps, removed: those of a Block.
    """
    clash = np.flatnonzero(same)
    if steps is not None:
        clash = clash[steps[clash] == steps[clash + 1]]
    differ = (rows[clash] != rows[clash + 1]).any(axis=1)
    if removed is not None:
        # What a removed id had as its row says nothing.
        differ = (differ & ~removed[clash]) | (removed[clash] != removed[clash + 1])
    if differ.any():
        row = int(clash[np.argmax(differ)])
        when = "" if steps is None else f" at the step {steps[row]}"
        # Rows of one id may come in any order, since several threads put them into parts.
        first, second = sorted((file_of(row), file_of(row + 1)))
        raise InvalidInput(
            f"table {table!r}: the id {ids[row]} has two different rows{when}, one in {first} and one in {second}"
        )
