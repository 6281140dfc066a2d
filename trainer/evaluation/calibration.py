"""Compares how large predictions are with what happens: on average, and by how high they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from trainer.evaluation.regression import checked_pair, checked_weights

_BINS = 10


def calibration(labels: ArrayLike, predictions: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Returns the mean prediction divided by the mean label, 1 at best; nan when the labels add up to 0.

    labels, predictions: (N,).
    weights: (N,), how much each row counts. Raises InvalidInput when they differ in length or hold values that are not
    finite.
    """
    truth, values = checked_pair(labels, predictions)
    factors = checked_weights(weights, len(truth))
    if factors is not None:
        truth, values = truth * factors, values * factors
    total = float(truth.sum())
    return float(values.sum()) / total if total else float("nan")


def calibration_error(
    labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None = None, *, bins: int = _BINS
) -> float:
    """Returns the expected calibration error: by bins of equal width, the difference of mean probability and mean
    label, weighted by the rows of the bin.

    labels, probabilities: (N,), from 0 to 1. weights: (N,), how much each row counts. nan without rows. Source: Naeini
    et al., "Obtaining Well Calibrated Probabilities Using Bayesian Binning", 2015.
    """
    truth, values = checked_pair(labels, probabilities)
    given = checked_weights(weights, len(truth))
    factors = np.ones(len(truth)) if given is None else given
    total = float(factors.sum())
    if total == 0.0:
        return float("nan")
    place = np.clip((values * bins).astype(np.int64), 0, bins - 1)
    differences = np.bincount(place, weights=(values - truth) * factors, minlength=bins)
    return float(np.abs(differences).sum() / total)
