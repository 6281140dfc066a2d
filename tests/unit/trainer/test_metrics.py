"""Metrics against slow, obvious references."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss as sklearn_log_loss

from storage.errors import InvalidInput
from tests.support.examples import examples
from trainer.metrics import auc, log_loss, paired_bootstrap


def pairwise_auc(labels: list[int], scores: list[float]) -> float:
    positive = [s for s, y in zip(scores, labels, strict=True) if y]
    negative = [s for s, y in zip(scores, labels, strict=True) if not y]
    wins = sum(1.0 if p > n else 0.5 if p == n else 0.0 for p in positive for n in negative)
    return wins / (len(positive) * len(negative))


# Few distinct scores, so that ties are the rule.
ROWS = st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3).map(float)), min_size=2, max_size=40)


@given(ROWS)
@settings(max_examples=examples(200), deadline=None)
def test_auc_counts_pairs_with_ties_as_half(rows: list[tuple[int, float]]) -> None:
    labels, scores = [y for y, _ in rows], [s for _, s in rows]
    if len(set(labels)) == 1:
        assert math.isnan(auc(labels, scores))
    else:
        assert auc(labels, scores) == pytest.approx(pairwise_auc(labels, scores), abs=1e-12)


def test_auc_of_a_perfect_and_an_inverted_order() -> None:
    assert auc([0, 0, 1, 1], [1, 2, 3, 4]) == 1.0
    assert auc([0, 0, 1, 1], [4, 3, 2, 1]) == 0.0


def test_auc_without_rows_is_nan() -> None:
    assert math.isnan(auc([], []))
    assert math.isnan(log_loss([], []))


def test_log_loss_is_sklearns() -> None:
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 500), rng.uniform(0.01, 0.99, 500)
    assert log_loss(labels, scores) == pytest.approx(sklearn_log_loss(labels, scores), abs=1e-12)


def test_log_loss_of_a_certain_mistake_is_finite() -> None:
    assert log_loss([1, 0], [0.0, 1.0]) == pytest.approx(-math.log(1e-7), rel=1e-6)


@pytest.mark.parametrize("scores", [[0.1, float("nan")], [0.1, float("inf")]])
def test_scores_that_are_not_finite_are_refused(scores: list[float]) -> None:
    with pytest.raises(InvalidInput, match="not finite"):
        auc([0, 1], scores)


def test_labels_other_than_0_and_1_are_refused() -> None:
    with pytest.raises(InvalidInput, match="0 or 1"):
        auc([0, 2], [0.1, 0.2])


def test_a_better_score_wins_the_bootstrap_and_noise_does_not() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 2000)
    good = labels + rng.normal(0, 1.0, 2000)
    worse = labels + rng.normal(0, 2.0, 2000)
    won = paired_bootstrap(labels, good, worse, samples=300)
    assert won.low > 0
    assert won.difference == pytest.approx(auc(labels, good) - auc(labels, worse), abs=1e-12)
    same = paired_bootstrap(labels, good, good, samples=50)
    assert (same.low, same.high) == (0.0, 0.0)
    noise = paired_bootstrap(labels, rng.normal(0, 1, 2000), rng.normal(0, 1, 2000), samples=300)
    assert noise.low < 0 < noise.high


def test_the_bootstrap_interval_is_that_of_resampling_rows() -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 2, 150)
    a, b = np.round(labels + rng.normal(0, 1, 150), 1), np.round(labels + rng.normal(0, 1.5, 150), 1)
    result = paired_bootstrap(labels, a, b, samples=400, seed=7)
    rng = np.random.default_rng(7)
    slow = []
    for _ in range(400):
        rows = rng.integers(0, 150, 150)
        slow.append(auc(labels[rows], a[rows]) - auc(labels[rows], b[rows]))
    assert result.low == pytest.approx(float(np.quantile(slow, 0.025)), abs=1e-12)
    assert result.high == pytest.approx(float(np.quantile(slow, 0.975)), abs=1e-12)


def test_a_bootstrap_over_one_class_is_refused() -> None:
    with pytest.raises(InvalidInput, match="one class"):
        paired_bootstrap([1, 1], [0.1, 0.2], [0.1, 0.2])
