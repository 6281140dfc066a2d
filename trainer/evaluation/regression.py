"""Metrics of a label that is a number."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from storage.errors import InvalidInput


def rmse(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns the root of the mean squared difference; nan without rows. labels, predictions: (N,)."""
    truth, values = checked_pair(labels, predictions)
    return float(np.sqrt(np.mean((values - truth) ** 2))) if len(truth) else float("nan")


def mae(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns the mean absolute difference; nan without rows. labels, predictions: (N,)."""
    truth, values = checked_pair(labels, predictions)
    return float(np.mean(np.abs(values - truth))) if len(truth) else float("nan")


def checked_pair(labels: ArrayLike, predictions: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns both as float64 (N,). Raises InvalidInput when they differ in length or hold values not finite."""
    truth = np.asarray(labels, dtype=np.float64).reshape(-1)
    values = np.asarray(predictions, dtype=np.float64).reshape(-1)
    if len(truth) != len(values):
        raise InvalidInput(f"{len(truth)} labels for {len(values)} scores; give one label a score", field="labels")
    for what, given in (("labels", truth), ("scores", values)):
        if not np.all(np.isfinite(given)):
            raise InvalidInput(f"{what} hold values that are not finite", field=what)
    return truth, values
