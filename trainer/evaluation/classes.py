"""Metrics of a label that is one of several classes.

N rows, C classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from storage.errors import InvalidInput

_SMALLEST_PROBABILITY = 1e-7


def class_accuracy(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Returns the share of rows whose most probable class is the label; nan without rows.

    labels: (N,), 0 to C - 1. probabilities: (N, C).
    """
    truth, values = _checked(labels, probabilities)
    return float(np.mean(values.argmax(axis=1) == truth)) if len(truth) else float("nan")


def class_log_loss(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Returns the mean negative log-likelihood of the label in nats; nan without rows.

    labels: (N,), 0 to C - 1. probabilities: (N, C), of which that of the label is kept 1e-7 away from 0.
    """
    truth, values = _checked(labels, probabilities)
    if len(truth) == 0:
        return float("nan")
    own = np.take_along_axis(values, truth[:, None], axis=1)
    return float(-np.mean(np.log(np.maximum(own, _SMALLEST_PROBABILITY))))


def _checked(labels: ArrayLike, probabilities: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    truth = np.asarray(labels).reshape(-1).astype(np.int64)
    values = np.asarray(probabilities, dtype=np.float64)
    if values.ndim != 2 or len(values) != len(truth):
        raise InvalidInput(
            f"the probabilities are {list(values.shape)}, expected {len(truth)} rows of one for each class",
            field="scores",
        )
    if len(truth) and not (truth.min() >= 0 and truth.max() < values.shape[1]):
        raise InvalidInput(f"labels must be 0 to {values.shape[1] - 1}", field="labels")
    return truth, values
