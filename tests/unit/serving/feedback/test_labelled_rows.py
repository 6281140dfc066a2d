"""Figures of labelled rows against slow references."""

from __future__ import annotations

import numpy as np
import pytest

from serving.feedback.labelled_rows import LabelledRows, auc_of, quality_of


def slow_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    pairs = [(a > b) + (a == b) / 2 for a in scores[positive] for b in scores[~positive]]
    return float(np.mean(pairs))


@pytest.mark.parametrize("seed", range(8))
def test_the_auc_is_that_of_all_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 12, 60) / 12
    positive = rng.random(60) < 0.3
    auc, error = auc_of(scores, positive, np.arange(60))
    assert auc == pytest.approx(slow_auc(scores, positive))
    assert error is not None
    assert error > 0


def drawn(rng: np.random.Generator, requests: int, rows: int, same: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns scores, labels and requests. same: how much rows of a request have in common."""
    request = np.repeat(np.arange(requests), rows)
    latent, noise = (
        same * np.repeat(rng.normal(size=requests), rows) + np.sqrt(1 - same**2) * rng.normal(size=requests * rows)
        for _ in range(2)
    )
    return latent, latent + noise > 0.8, request


@pytest.mark.parametrize("same", [0.0, 0.95])
def test_the_standard_error_is_the_spread_over_many_samples_also_where_rows_of_a_request_are_alike(same: float) -> None:
    rng = np.random.default_rng(3)
    found = [auc_of(*drawn(rng, 80, 6, same)) for _ in range(400)]
    spread = float(np.std([auc for auc, _ in found if auc is not None]))
    mean = float(np.mean([error for _, error in found if error is not None]))
    assert mean == pytest.approx(spread, rel=0.15)
    by_rows = [auc_of(scores, positive, np.arange(len(scores)))[1] for scores, positive, _ in [drawn(rng, 80, 6, same)]]
    if same:
        assert by_rows[0] is not None
        assert by_rows[0] < 0.7 * spread  # rows alone would promise too much


def test_loss_calibration_and_ece_are_those_of_their_definitions() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random(500).astype(np.float32)
    labels = (rng.random(500) < scores * 0.5).astype(np.float32)
    quality = quality_of(scores, labels, np.arange(500))
    wide = scores.astype(np.float64)
    assert quality.log_loss == pytest.approx(float(-np.mean(labels * np.log(wide) + (1 - labels) * np.log(1 - wide))))
    assert quality.calibration == pytest.approx(wide.sum() / labels.sum())
    bins = np.minimum((wide * 10).astype(int), 9)
    ece = sum(abs(wide[bins == b].mean() - labels[bins == b].mean()) * (bins == b).mean() for b in range(10))
    assert quality.ece == pytest.approx(float(ece))
    assert (quality.rows, quality.positives) == (500, labels.sum())


def test_figures_that_mean_nothing_are_none() -> None:
    assert quality_of(np.empty(0), np.empty(0), np.empty(0)).auc is None
    one_kind = quality_of(np.array([0.2, 0.4]), np.zeros(2), np.arange(2))
    assert (one_kind.auc, one_kind.calibration) == (None, None)
    assert one_kind.log_loss is not None
    logits = quality_of(np.array([-2.0, 3.0]), np.array([0.0, 1.0]), np.arange(2))
    assert (logits.auc, logits.auc_error, logits.log_loss, logits.ece) == (1.0, None, None, None)
    assert quality_of(np.array([0.0, 1.0]), np.array([1.0, 0.0]), np.arange(2)).log_loss == pytest.approx(16.1, abs=0.1)


def test_the_ring_keeps_the_newest_rows_and_asks_for_those_since_a_time() -> None:
    rows = LabelledRows(4)
    assert rows.first_served is None
    for number in range(6):
        rows.add(number / 10, number % 2, 100.0 + number, number)
    assert quality_of(*rows.chosen()).rows == 4
    assert rows.first_served == 102.0
    assert quality_of(*rows.chosen(104.0)).rows == 2
    assert quality_of(*rows.chosen(104.0)).mean_score == pytest.approx(0.45)
