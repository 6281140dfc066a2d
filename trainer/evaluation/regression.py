"""Metrics of a label that is a number. weights: (N,), how much each row counts; None: all alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from storage.errors import InvalidInput


def rmse(labels: ArrayLike, predictions: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Returns the root of the mean squared difference; nan without rows. labels, predictions: (N,)."""
    truth, values = checked_pair(labels, predictions)
    return float(np.sqrt(weighted_mean((values - truth) ** 2, weights)))


def mae(labels: ArrayLike, predictions: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Returns the mean absolute difference; nan without rows. labels, predictions: (N,)."""
    truth, values = checked_pair(labels, predictions)
    return weighted_mean(np.abs(values - truth), weights)


def weighted_mean(values: NDArray[np.float64], weights: ArrayLike | None) -> float:
    """Returns the mean of the values (N,) by their weights; nan where they add up to 0. Raises InvalidInput."""
    factors = checked_weights(weights, len(values))
    if factors is None:
        return float(np.mean(values)) if len(values) else float("nan")
    total = float(factors.sum())
    return float((values * factors).sum()) / total if total else float("nan")


def checked_weights(weights: ArrayLike | None, rows: int) -> NDArray[np.float64] | None:
    """Returns weights as float64 (N,). Raises InvalidInput unless there is a finite one of 0 or more for each row."""
    if weights is None:
        return None
    factors = np.asarray(weights, dtype=np.float64).reshape(-1)
    if len(factors) != rows:
        raise InvalidInput(f"{len(factors)} weights for {rows} labels; give one a label", field="weights")
    if not np.all((factors >= 0.0) & np.isfinite(factors)):
        raise InvalidInput("weights hold values other than finite numbers of 0 or more", field="weights")
    return factors


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
