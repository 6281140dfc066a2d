"""Metrics of the order of rows within groups, such as the films that one user was shown.

labels: (N,), 0 or more; above 0 a row is relevant. scores: (N,). groups: (N,), equal values make a group. Groups
without a relevant row are left out, and a metric without any other group is nan. Equal scores share their places: each
row counts as the mean over the orders that they could have.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from storage.errors import InvalidInput
from trainer.evaluation.regression import checked_pair, checked_weights

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def gauc(labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Returns the mean AUC of the groups that have relevant and other rows, weighted by the rows of a group.

    weights: (N,), how much each row counts; None: all alike.
    """
    ranked = _Ranked(labels, scores, groups)
    factors = checked_weights(weights, len(ranked.labels))
    counted = np.ones(len(ranked.labels)) if factors is None else factors[ranked.order]
    relevant, other = (counted * chosen for chosen in (ranked.labels > 0, ranked.labels <= 0))
    positive, negative = ranked.by_group(relevant), ranked.by_group(other)
    # By Mann-Whitney: each relevant row wins against the other ones below it, and half of those with its score.
    until_here = ranked.through_equal(np.cumsum(other)) - (np.cumsum(negative) - negative)[ranked.group]
    wins = ranked.by_group(relevant * (negative[ranked.group] - until_here + 0.5 * ranked.total_of_equal(other)))
    used = (positive > 0) & (negative > 0)
    if not used.any():
        return float("nan")
    sizes = ranked.by_group(counted)
    return float(np.average(wins[used] / (positive * negative)[used], weights=sizes[used]))


def ndcg(labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, *, k: int) -> float:
    """Returns the mean over groups of the discounted gain of the first k rows, divided by that of the best order.

    The gain of a row is its label, and its discount 1 / log2(place + 1), counted from 1. Source: Järvelin and
    Kekäläinen, "Cumulated Gain-Based Evaluation of IR Techniques", 2002.
    """
    ranked = _Ranked(labels, scores, groups)
    best = _Ranked(labels, labels, groups)
    gained, possible = (each.by_group(each.labels * each.shared(_discounts(each.place, k))) for each in (ranked, best))
    used = possible > 0
    return float(np.mean(gained[used] / possible[used])) if used.any() else float("nan")


def recall(labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, *, k: int) -> float:
    """Returns the mean over groups of the share of relevant rows that are among the first k."""
    ranked = _Ranked(labels, scores, groups)
    relevant = (ranked.labels > 0).astype(np.float64)
    found = ranked.by_group(relevant * ranked.shared((ranked.place < k).astype(np.float64)))
    there = ranked.by_group(relevant)
    used = there > 0
    return float(np.mean(found[used] / there[used])) if used.any() else float("nan")


def mrr(labels: ArrayLike, scores: ArrayLike, groups: ArrayLike) -> float:
    """Returns the mean over groups of 1 / the place of the first relevant row; equal scores share their mean place."""
    ranked = _Ranked(labels, scores, groups)
    places = np.where(ranked.labels > 0, ranked.mean_place + 1.0, np.inf)
    first = np.full(len(ranked.sizes), np.inf)
    np.minimum.at(first, ranked.group, places)
    used = np.isfinite(first)
    return float(np.mean(1.0 / first[used])) if used.any() else float("nan")


class _Ranked:
    """Rows ordered by group, and within it from the highest score to the lowest."""

    def __init__(self, labels: ArrayLike, scores: ArrayLike, groups: ArrayLike) -> None:
        truth, values = checked_pair(labels, scores)
        if np.any(truth < 0):
            raise InvalidInput("labels must be 0 or more", field="labels")
        names, numbers = np.unique(np.asarray(groups), return_inverse=True)
        if len(numbers) != len(truth):
            raise InvalidInput(f"{len(numbers)} groups for {len(truth)} labels; give one a label", field="groups")
        order = np.lexsort((-values, numbers))
        #: The rows (N,) in this order.
        self.order: Ints = order
        self.labels: Floats = truth[order]
        #: The number of each row's group, 0 for the first.
        self.group: Ints = numbers[order].astype(np.int64)
        #: Rows of each group.
        self.sizes: Ints = np.bincount(self.group, minlength=len(names)).astype(np.int64)
        starts = np.cumsum(self.sizes) - self.sizes
        #: The place of each row in its group, 0 for the highest score.
        self.place: Ints = np.arange(len(order)) - starts[self.group]
        changes = np.ones(len(order), dtype=bool)
        ordered = values[order]
        changes[1:] = (ordered[1:] != ordered[:-1]) | (self.group[1:] != self.group[:-1])
        # Rows of one group with one score.
        self._equal: Ints = np.cumsum(changes) - 1

    def shared(self, values: Floats) -> Floats:
        """Returns for each row the mean of the values (N,) of all rows of its group with its score."""
        mean: Floats = self.total_of_equal(values) / np.bincount(self._equal)[self._equal]
        return mean

    def total_of_equal(self, values: Floats) -> Floats:
        """Returns for each row the sum of the values (N,) of all rows of its group with its score."""
        totals: Floats = np.bincount(self._equal, weights=values).astype(np.float64)
        return totals[self._equal]

    def through_equal(self, values: Floats) -> Floats:
        """Returns for each row the value (N,) of the last row of its group with its score."""
        last: Ints = np.cumsum(np.bincount(self._equal)) - 1
        found: Floats = values[last][self._equal]
        return found

    @property
    def mean_place(self) -> Floats:
        """The place of each row, the mean one where scores are equal."""
        return self.shared(self.place.astype(np.float64))

    def by_group(self, values: Floats) -> Floats:
        """Returns the sums of the values (N,) of each group."""
        sums: Floats = np.bincount(self.group, weights=values, minlength=len(self.sizes)).astype(np.float64)
        return sums


def _discounts(place: Ints, k: int) -> Floats:
    return np.where(place < k, 1.0 / np.log2(place + 2.0), 0.0)
