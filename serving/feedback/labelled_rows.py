"""Keeps the last rows whose labels are known, and computes how good their scores were.

Rows of one request have much in common, so the standard error of the AUC counts requests and not rows: it is that of
Obuchowski, "Nonparametric analysis of clustered ROC curve data", Biometrics 53 (1997), whose terms are the structural
components of DeLong, DeLong and Clarke-Pearson (1988).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

#: Rows that are kept of an output in an arm.
MAX_ROWS = 32_768
_BINS = 10
_LEAST_PROBABILITY = 1e-7
# With fewer requests of either kind there is no standard error.
_FEWEST_REQUESTS = 2


@dataclass(frozen=True)
class Quality:
    """Says how good scores were. A figure is None where it cannot be computed."""

    rows: int = 0
    #: The sum of the labels.
    positives: float = 0.0
    #: Labels above 0.5.
    above: int = 0
    auc: float | None = None
    #: Its standard error, by requests.
    auc_error: float | None = None
    #: These are for scores and labels in 0 to 1.
    log_loss: float | None = None
    #: The sum of the scores over the sum of the labels.
    calibration: float | None = None
    #: The expected calibration error over ten bins of equal width.
    ece: float | None = None
    mean_score: float | None = None


class LabelledRows:
    """Holds scores with their labels, in a ring. Not thread-safe."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self._scores = np.zeros(max_rows, np.float32)
        self._labels = np.zeros(max_rows, np.float32)
        self._served = np.zeros(max_rows, np.float64)
        self._requests = np.zeros(max_rows, np.int64)
        #: Rows that came in all.
        self.count = 0

    def add(self, score: float, label: float, served: float, request: int) -> None:
        """Adds a row. served: when it was scored, in seconds since 1970. request: a number that its request has."""
        place = self.count % len(self._scores)
        self._scores[place], self._labels[place] = score, label
        self._served[place], self._requests[place] = served, request
        self.count += 1

    @property
    def first_served(self) -> float | None:
        """Returns when the oldest row was scored; None where there is none."""
        rows = min(self.count, len(self._served))
        return float(self._served[:rows].min()) if rows else None

    def chosen(self, since: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns copies of the rows that were scored at `since` or later, as `quality_of` takes them."""
        rows = min(self.count, len(self._scores))
        chosen = self._served[:rows] >= since
        return self._scores[:rows][chosen], self._labels[:rows][chosen], self._requests[:rows][chosen]


def quality_of(scores: np.ndarray, labels: np.ndarray, requests: np.ndarray) -> Quality:
    """Returns the figures of scores (n,) with labels (n,). requests: (n,) a number for each request."""
    if not len(scores):
        return Quality()
    scores, labels = scores.astype(np.float64), labels.astype(np.float64)
    auc, error = auc_of(scores, labels > 0.5, requests)
    above = int((labels > 0.5).sum())
    known = Quality(len(scores), float(labels.sum()), above, auc, error, mean_score=float(scores.mean()))
    if scores.min() < 0 or scores.max() > 1 or labels.min() < 0 or labels.max() > 1:
        return known
    safe = np.clip(scores, _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
    loss = -(labels * np.log(safe) + (1 - labels) * np.log1p(-safe))
    place = np.minimum((scores * _BINS).astype(np.int64), _BINS - 1)
    off = np.bincount(place, scores - labels, _BINS)
    total = labels.sum()
    return replace(
        known,
        log_loss=float(loss.mean()),
        calibration=float(scores.sum() / total) if total else None,
        ece=float(np.abs(off).sum() / len(scores)),
    )


def auc_of(scores: np.ndarray, positive: np.ndarray, requests: np.ndarray) -> tuple[float | None, float | None]:
    """Returns the area under the ROC curve, ties counted as halves, and its standard error by requests."""
    of_positives, of_negatives = np.sort(scores[positive]), np.sort(scores[~positive])
    m, n = len(of_positives), len(of_negatives)
    if not m or not n:
        return None, None
    # For each row, the share of rows of the other kind that it is on the right side of.
    share = np.empty(len(scores))
    share[positive] = _below(of_negatives, scores[positive]) / n
    share[~positive] = 1 - _below(of_positives, scores[~positive]) / m
    auc = float(share[positive].mean())
    _, request = np.unique(requests, return_inverse=True)
    off = share - auc
    sums_m = np.bincount(request, np.where(positive, off, 0.0))
    sums_n = np.bincount(request, np.where(positive, 0.0, off))
    with_m, with_n = len(np.unique(request[positive])), len(np.unique(request[~positive]))
    count = len(sums_m)
    if min(with_m, with_n) < _FEWEST_REQUESTS:
        return auc, None
    variance = (
        with_m / (with_m - 1) * float((sums_m**2).sum()) / m**2
        + with_n / (with_n - 1) * float((sums_n**2).sum()) / n**2
        + 2 * count / (count - 1) * float((sums_m * sums_n).sum()) / (m * n)
    )
    return auc, float(np.sqrt(max(variance, 0.0)))


def _below(ordered: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns how many of `ordered` are below each value; equal ones count as halves."""
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2
