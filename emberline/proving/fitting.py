"""Finds the vector that the old server reads for ids without a row, from its answers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emberline.proving.changes import Change, Hypothesis
from emberline.proving.comparison import Comparison
from emberline.proving.local_model import LocalModel
from storage.features import FeatureBatch

# Scores the rows with a change on top of what is known already.
Score = Callable[[Change], Comparison]
Residuals = Callable[[Change], np.ndarray]

_GRID = np.linspace(-1.0, 1.0, 41)
_STEPS, _NUDGE = 8, 1e-2


def rows_without(model: LocalModel, features: FeatureBatch, change: Change) -> dict[str, np.ndarray]:
    """Returns by table which requests have an id without a row in it, (B,) bool; tables without such are left out."""
    found: dict[str, np.ndarray] = {}
    for feature, own in model.tables.items():
        bags, name = features.ids[feature], change.tables.get(feature, own)
        has_row = model.rows[name].find(bags.values + change.shifts.get(feature, 0))[1]
        rows = np.repeat(np.arange(features.batch), bags.lengths())
        hit = np.zeros(features.batch, bool)
        hit[rows[~has_row]] = True
        if hit.any():
            found[name] = found.get(name, False) | hit
    return found


def fitted_default(model: LocalModel, table: str, score: Score, residuals: Residuals) -> Hypothesis | None:
    """Returns the hypothesis with the vector that gives the old answers; None when there is none.

    Known vectors are tried first, then one value for all places, then any vector. residuals: returns the signed
    differences (n,) of the rows that have an id without a row.
    """
    dim = model.rows[table].spec.dim
    rows = model.rows[table]
    known: dict[str, np.ndarray] = {"zeros": np.zeros(dim, np.float32), "ones": np.ones(dim, np.float32)}
    if len(rows.ids):
        every = rows.find(rows.ids)[0]
        known |= {
            f"the row of id {rows.ids[0]}": every[0],
            f"the row of id {rows.ids[-1]}": every[-1],
            "the mean of all rows": every.mean(axis=0, dtype=np.float64).astype(np.float32),
        }
    for text, vector in known.items():
        if score(_default(table, vector)).count == 0:
            return _hypothesis(table, vector, text)
    value = _one_value(table, dim, score)
    if value is not None:
        return _hypothesis(table, np.full(dim, value, np.float32), f"{value:.4g} in every place")
    fitted = _any_vector(table, dim, residuals)
    if fitted is not None and score(_default(table, fitted)).count == 0:
        shown = ", ".join(f"{each:.3g}" for each in fitted[:6])
        return _hypothesis(table, fitted, f"the vector [{shown}{', ...' if dim > 6 else ''}]")
    return None


def _one_value(table: str, dim: int, score: Score) -> float | None:
    def error(value: float) -> float:
        return float(score(_default(table, np.full(dim, value, np.float32))).apart.sum())

    best, width = float(min(_GRID.tolist(), key=error)), float(_GRID[1] - _GRID[0])
    while width > 1e-7:
        best = float(min((best + step * width / 4 for step in range(-4, 5)), key=error))
        width /= 4
    for value in (round(best, 3), best):
        if score(_default(table, np.full(dim, value, np.float32))).count == 0:
            return value
    return None


def _any_vector(table: str, dim: int, residuals: Residuals) -> np.ndarray | None:
    """Fits a vector by Gauss and Newton's method on one half of the rows; the caller checks it on all."""
    vector = np.zeros(dim, np.float64)
    here = residuals(_default(table, vector))
    half = slice(0, None, 2)
    if len(here[half]) < dim:
        return None  # too few rows say anything about a vector
    for _ in range(_STEPS):
        slopes = np.empty((len(here), dim))
        for place in range(dim):
            nudged = vector.copy()
            nudged[place] += _NUDGE
            slopes[:, place] = (residuals(_default(table, nudged)) - here) / _NUDGE
        step = np.linalg.lstsq(slopes[half], -here[half], rcond=1e-6)[0]
        vector = vector + step
        here = residuals(_default(table, vector))
        if not np.isfinite(here).all():
            return None
    return vector.astype(np.float32)


def _default(table: str, vector: np.ndarray) -> Change:
    return Change(defaults={table: np.asarray(vector, np.float32)})


def _hypothesis(table: str, vector: np.ndarray, text: str) -> Hypothesis:
    return Hypothesis(
        _default(table, vector),
        f"reads ids without a row in table {table} as {text}: another default vector",
        about=table,
    )
