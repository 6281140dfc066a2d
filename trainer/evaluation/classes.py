"""Metrics of a label that is one of several classes.

N rows, C classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from storage.errors import InvalidInput
from trainer.evaluation.regression import weighted_mean

_SMALLEST_PROBABILITY = 1e-7


def class_accuracy(labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Returns the share of rows whose most probable class is the label; nan without rows.

    labels: (N,), 0 to C - 1. probabilities: (N, C). weights: (N,), how much each row counts.
    """
    truth, values = _checked(labels, probabilities)
    found = values.argmax(axis=1) if len(truth) else truth
    return weighted_mean((found == truth).astype(np.float64), weights)


def class_log_loss(labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Returns the mean negative log-likelihood of the label in nats; nan without rows.

    labels: (N,), 0 to C - 1. probabilities: (N, C), of which that of the label is kept 1e-7 away from 0. weights: (N,).
    """
    truth, values = _checked(labels, probabilities)
    own = np.take_along_axis(values, truth[:, None], axis=1).reshape(-1)
    return -weighted_mean(np.log(np.maximum(own, _SMALLEST_PROBABILITY)), weights)


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
