"""Metrics of a binary label: AUC, log-loss, accuracy, and whether one set of scores beats another by more than chance.

N rows throughout. Labels are 0 or 1, scores any finite numbers (probabilities for the log-loss). weights: (N,), how
much each row counts; None: all alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from storage.errors import InvalidInput
from trainer.evaluation.regression import checked_weights, weighted_mean

_SMALLEST_PROBABILITY = 1e-7


@dataclass(frozen=True)
class BootstrapResult:
    """Holds the difference of two AUCs, that of a minus that of b, and its interval."""

    #: The difference on all rows.
    difference: float
    #: The ends of the interval that holds `confidence` of the resampled differences.
    low: float
    high: float
    confidence: float
    samples: int


def auc(labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Returns the area under the ROC curve by ranks; equal scores share their mean rank (Mann-Whitney U).

    labels, scores: (N,). nan with one class only. Raises InvalidInput when they differ in length or a score is not
    finite.
    """
    truth, values = _checked(labels, scores)
    factors = checked_weights(weights, len(truth))
    each = np.ones(len(truth)) if factors is None else factors
    return float(_RankedScores(truth, values).auc(each[None, :])[0])


def log_loss(labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Returns the mean negative log-likelihood in nats; nan without rows.

    probabilities: (N,), kept 1e-7 away from 0 and 1.
    """
    truth, values = _checked(labels, probabilities)
    clipped = np.clip(values, _SMALLEST_PROBABILITY, 1.0 - _SMALLEST_PROBABILITY)
    return -weighted_mean(np.where(truth, np.log(clipped), np.log1p(-clipped)), weights)


def accuracy(labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Returns the share of rows whose probability is on the side of 0.5 that the label says; nan without rows."""
    truth, values = _checked(labels, probabilities)
    return weighted_mean(((values >= 0.5) == truth).astype(np.float64), weights)


def paired_bootstrap(
    labels: ArrayLike,
    scores_a: ArrayLike,
    scores_b: ArrayLike,
    *,
    samples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> BootstrapResult:
    """Resamples rows with replacement, the same rows for both, and computes AUC(a) - AUC(b) each time.

    labels, scores_a, scores_b: (N,). The interval is the percentile interval. Resamples with one class only are
    left out. Raises InvalidInput when nothing can be compared.
    """
    truth, first = _checked(labels, scores_a)
    _, second = _checked(labels, scores_b)
    if truth.all() or not truth.any():
        raise InvalidInput("paired bootstrap: the labels hold one class only, so there is no AUC", field="labels")
    ranked_a, ranked_b = _RankedScores(truth, first), _RankedScores(truth, second)
    rows = len(truth)
    rng = np.random.default_rng(seed)
    differences: list[NDArray[np.float64]] = []
    chunk = max(1, 2_000_000 // rows)
    for start in range(0, samples, chunk):
        count = min(chunk, samples - start)
        # A resample is a count of how often each row was drawn; the AUC with these weights needs no new sort.
        weights = np.stack([np.bincount(rng.integers(0, rows, rows), minlength=rows) for _ in range(count)])
        weighted = weights.astype(np.float64)
        differences.append(ranked_a.auc(weighted) - ranked_b.auc(weighted))
    drawn = np.concatenate(differences)
    drawn = drawn[np.isfinite(drawn)]
    if len(drawn) == 0:
        raise InvalidInput("paired bootstrap: no resample held both classes; give more rows", field="labels")
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(drawn, [tail, 1.0 - tail])
    one = np.ones((1, rows), dtype=np.float64)
    observed = float((ranked_a.auc(one) - ranked_b.auc(one))[0])
    return BootstrapResult(observed, float(low), float(high), confidence, len(drawn))


class _RankedScores:
    """Sorts scores once, and computes the AUC for many weightings of the rows."""

    def __init__(self, truth: NDArray[np.bool_], scores: NDArray[np.float64]) -> None:
        self._order = np.argsort(scores, kind="stable")
        ordered = scores[self._order]
        self._truth = truth[self._order]
        new_value = np.empty(len(ordered), dtype=bool)
        if len(ordered):
            new_value[0] = True
            new_value[1:] = ordered[1:] != ordered[:-1]
        self._starts = np.flatnonzero(new_value)

    def auc(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the AUC (S,) for weights (S, N) >= 0; nan where a class has no weight."""
        samples = len(weights)
        if len(self._starts) == 0:
            return np.full(samples, np.nan)
        ordered = weights[:, self._order]
        positive = np.add.reduceat(ordered * self._truth, self._starts, axis=1)
        negative = np.add.reduceat(ordered * ~self._truth, self._starts, axis=1)
        below = np.cumsum(negative, axis=1) - negative
        wins = np.sum(positive * (below + 0.5 * negative), axis=1)
        pairs = positive.sum(axis=1) * negative.sum(axis=1)
        result = np.full(samples, np.nan)
        np.divide(wins, pairs, out=result, where=pairs > 0)
        return result


def _checked(labels: ArrayLike, scores: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    truth = np.asarray(labels).reshape(-1)
    values = np.asarray(scores, dtype=np.float64).reshape(-1)
    if len(truth) != len(values):
        raise InvalidInput(f"{len(truth)} labels for {len(values)} scores; give one label a score", field="labels")
    if not np.all((truth == 0) | (truth == 1)):
        raise InvalidInput("labels must be 0 or 1", field="labels")
    if not np.all(np.isfinite(values)):
        raise InvalidInput("scores hold values that are not finite", field="scores")
    return truth.astype(bool), values
