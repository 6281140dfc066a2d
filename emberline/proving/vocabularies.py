"""Finds tables of which the old server knows the first ids alone, and what it reads for the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emberline.proving.changes import Change, Hypothesis
from emberline.proving.comparison import Comparison
from emberline.proving.local_model import LocalModel
from storage.features import FeatureBatch

# An id that no table has a row for.
_NONE = -(2**62)
_LEAST = 2


def truncated(
    model: LocalModel,
    features: FeatureBatch,
    here: Comparison,
    change: Change,
    score: Callable[[Change], Comparison],
    equal: np.ndarray,
) -> Hypothesis | None:
    """Returns the hypothesis that ids of a table are known up to one alone; None without one.

    Every request that differs has to hold an id above all those of requests that are equal, and the answers must be the
    old ones where such ids are read as one that a server may take in their place. equal: the requests that are equal
    without being explained, (B,) bool.
    """
    for table in model.rows:
        readers = [name for name, own in model.tables.items() if change.tables.get(name, own) == table]
        if not readers or not equal.any():
            continue
        pairs = [_pairs(features, name, change) for name in readers]
        rows, ids = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        known = int(ids[equal[rows]].max(initial=-1))
        beyond = (ids > known) & here.differs[rows]
        explains = np.zeros(features.batch, bool)
        explains[rows[beyond]] = True
        if (here.differs & ~explains).any() or len(np.unique(ids[beyond])) < _LEAST:
            continue
        first = int(ids[beyond].min())
        # Those of an id that is not known, of a bucket in front of or behind the others, and of the last one.
        for read in dict.fromkeys([_NONE, 0, 1, known, first - 1, known + 1, first]):
            found = Change(beyond={table: (first, read)})
            if score(found).count == 0:
                what = "reads them as ids without a row" if read == _NONE else f"reads the row of id {read} for them"
                return Hypothesis(found, f"does not know ids from {first} on of table {table}, and {what}", about=table)
    return None


def _pairs(features: FeatureBatch, name: str, change: Change) -> tuple[np.ndarray, np.ndarray]:
    """Returns the request and the value of each id of a feature."""
    bags = features.ids[change.sources.get(name, name)]
    rows = np.repeat(np.arange(features.batch), bags.lengths())
    return rows, bags.values + change.shifts.get(name, 0)
