"""Metrics of retrieval: where the item of a row is among all items, by the dot products with the row's user.

N rows, P of them with label 1, D values of an embedding, M distinct items.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.evaluation.regression import weighted_mean

# Scores in memory at a time.
_AT_ONCE = 1 << 24

Array = np.ndarray[Any, np.dtype[Any]]


def retrieval_places(labels: Array, users: Array, items: Array, ids: Array) -> NDArray[np.float64]:
    """Returns for each row with label 1 the place of its item among all distinct items of the rows, from 1 on.

    labels: (N,). users, items: (N, D), the embeddings of a row's user and item. ids: (N,) int64, those of the items.
    Equal scores share their mean place. Returns (P,).
    """
    _, first, number = np.unique(ids, return_index=True, return_inverse=True)
    candidates = items[first]
    positive = np.flatnonzero(labels > 0)
    places = np.empty(len(positive), np.float64)
    at_once = max(1, _AT_ONCE // max(1, len(candidates)))
    for start in range(0, len(positive), at_once):
        rows = positive[start : start + at_once]
        scores = users[rows] @ candidates.T
        # The row's own score is one of these, so that it is equal to itself.
        own = np.take_along_axis(scores, number[rows][:, None], axis=1)
        places[start : start + at_once] = (scores > own).sum(axis=1) + ((scores == own).sum(axis=1) + 1) / 2
    return places


def retrieval_metric(name: str, places: NDArray[np.float64], weights: Array | None = None) -> float:
    """Returns recall@K, the share of places up to K, or mrr, the mean of 1 / place; nan without places.

    weights: (P,), how much each place counts; None: all alike.
    """
    kind, _, depth = name.partition("@")
    return weighted_mean((places <= int(depth)).astype(np.float64) if kind == "recall" else 1.0 / places, weights)
