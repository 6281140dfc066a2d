"""Metrics of several kinds of label, and by group, against scikit-learn or plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
import sklearn.metrics

from storage.errors import InvalidInput
from trainer import metrics
from trainer.metrics import measure
from trainer.task_config import TaskConfig

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


def ranked_rows(seed: int = 0, *, ties: bool = False) -> Rows:
    """Makes graded labels, scores and groups of 1 to 12 rows, some without a relevant row."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(60) * 7919, rng.integers(1, 12, 60))
    labels = rng.integers(0, 4, len(groups)) * (rng.random(len(groups)) < 0.4)
    scores = rng.integers(0, 5, len(groups)) / 4 if ties else rng.normal(size=len(groups))
    order = rng.permutation(len(groups))
    return labels[order].astype(float), scores[order], groups[order]


def by_group(metric: Callable[[np.ndarray, np.ndarray], float | None], rows: Rows) -> list[tuple[float, int]]:
    labels, scores, groups = rows
    found = ((metric(labels[groups == g], scores[groups == g]), int((groups == g).sum())) for g in np.unique(groups))
    return [(value, size) for value, size in found if value is not None]


def test_ndcg_is_sklearns_mean_over_groups_with_a_relevant_row() -> None:
    def one(labels: np.ndarray, scores: np.ndarray) -> float | None:
        if not labels.any():
            return None
        if len(labels) == 1:
            return 1.0
        return float(sklearn.metrics.ndcg_score([labels], [scores], k=3))

    for ties in (False, True):
        rows = ranked_rows(ties=ties)
        expected = np.mean([value for value, _ in by_group(one, rows)])
        assert metrics.ndcg(*rows, k=3) == pytest.approx(expected, abs=1e-12)


def test_gauc_is_sklearns_auc_of_each_group_weighted_by_its_rows() -> None:
    def one(labels: np.ndarray, scores: np.ndarray) -> float | None:
        relevant = labels > 0
        if relevant.all() or not relevant.any():
            return None
        return float(sklearn.metrics.roc_auc_score(relevant, scores))

    for ties in (False, True):
        rows = ranked_rows(1, ties=ties)
        values, sizes = zip(*by_group(one, rows), strict=True)
        assert metrics.gauc(*rows) == pytest.approx(np.average(values, weights=sizes), abs=1e-12)


def test_recall_and_mrr_are_those_of_plain_loops() -> None:
    def recall(labels: np.ndarray, scores: np.ndarray) -> float | None:
        first = np.argsort(-scores)[:2]
        return None if not labels.any() else float((labels[first] > 0).sum() / (labels > 0).sum())

    def mrr(labels: np.ndarray, scores: np.ndarray) -> float | None:
        places = [place for place, row in enumerate(np.argsort(-scores), 1) if labels[row] > 0]
        return 1 / places[0] if places else None

    rows = ranked_rows(2)
    assert metrics.recall(*rows, k=2) == pytest.approx(np.mean([v for v, _ in by_group(recall, rows)]), abs=1e-12)
    assert metrics.mrr(*rows) == pytest.approx(np.mean([v for v, _ in by_group(mrr, rows)]), abs=1e-12)


def test_equal_scores_count_as_the_mean_over_their_orders() -> None:
    labels, scores = np.array([1, 0, 0, 1, 0]), np.array([2.0, 1.0, 1.0, 1.0, 0.0])
    orders = [[0, *middle, 4] for middle in permutations([1, 2, 3])]
    expected = np.mean([labels[order[:2]].sum() / labels.sum() for order in orders])
    assert metrics.recall(labels, scores, np.zeros(5), k=2) == pytest.approx(expected)


def test_a_model_that_says_the_same_of_all_rows_ranks_like_chance() -> None:
    labels, _, groups = ranked_rows(3)
    assert metrics.gauc(labels, np.zeros(len(labels)), groups) == pytest.approx(0.5)


def test_groups_without_a_relevant_row_leave_nothing_to_measure() -> None:
    rows = np.zeros(4), np.arange(4.0), np.array([1, 1, 2, 2])
    assert all(math.isnan(metric(*rows)) for metric in (metrics.gauc, metrics.mrr))
    assert math.isnan(metrics.ndcg(*rows, k=3))
    with pytest.raises(InvalidInput, match="0 or more"):
        metrics.mrr([-1.0, 1.0], [1.0, 2.0], [1, 1])


def test_numbers_and_classes_are_measured_as_sklearn_does() -> None:
    rng = np.random.default_rng(4)
    truth, guess = rng.normal(3, 1, 300), rng.normal(3, 1, 300)
    assert metrics.rmse(truth, guess) == pytest.approx(sklearn.metrics.root_mean_squared_error(truth, guess))
    assert metrics.mae(truth, guess) == pytest.approx(sklearn.metrics.mean_absolute_error(truth, guess))
    labels, shares = rng.integers(0, 4, 300), rng.dirichlet(np.ones(4), 300)
    assert metrics.class_accuracy(labels, shares) == sklearn.metrics.accuracy_score(labels, shares.argmax(axis=1))
    assert metrics.class_log_loss(labels, shares) == pytest.approx(sklearn.metrics.log_loss(labels, shares))
    assert metrics.accuracy(labels > 1, guess) == sklearn.metrics.accuracy_score(labels > 1, guess >= 0.5)


def test_calibration_compares_means_overall_and_by_bins() -> None:
    rng = np.random.default_rng(5)
    probabilities = rng.random(20_000)
    labels = rng.random(20_000) < probabilities
    assert metrics.calibration(labels, probabilities) == pytest.approx(1.0, abs=0.02)
    assert metrics.calibration_error(labels, probabilities) < 0.02
    # Half of what happens is predicted: calibration sees it, and so do the bins.
    assert metrics.calibration(labels, probabilities / 2) == pytest.approx(0.5, abs=0.01)
    bins = np.minimum((probabilities / 2 * 10).astype(int), 9)
    plain = sum(
        abs(labels[bins == b].mean() - (probabilities / 2)[bins == b].mean()) * (bins == b).mean()
        for b in np.unique(bins)
    )
    assert metrics.calibration_error(labels, probabilities / 2) == pytest.approx(plain)
    # Two mistakes that cancel each other are seen by the bins alone.
    assert metrics.calibration([0, 1], [0.95, 0.05]) == 1.0
    assert metrics.calibration_error([0, 1], [0.95, 0.05]) == pytest.approx(0.95)


def test_weights_count_as_sklearns_sample_weight() -> None:
    rng = np.random.default_rng(7)
    labels, shares = rng.integers(0, 2, 400), rng.integers(0, 20, 400) / 19
    weights = rng.integers(0, 5, 400) / 2
    given: dict[str, np.ndarray] = {"sample_weight": weights}
    assert metrics.auc(labels, shares, weights) == pytest.approx(sklearn.metrics.roc_auc_score(labels, shares, **given))
    clipped = np.clip(shares, 1e-7, 1 - 1e-7)
    assert metrics.log_loss(labels, shares, weights) == pytest.approx(
        sklearn.metrics.log_loss(labels, clipped, **given)
    )
    for ours, theirs in [
        (metrics.accuracy(labels, shares, weights), sklearn.metrics.accuracy_score(labels, shares >= 0.5, **given)),
        (metrics.rmse(labels, shares, weights), sklearn.metrics.root_mean_squared_error(labels, shares, **given)),
        (metrics.mae(labels, shares, weights), sklearn.metrics.mean_absolute_error(labels, shares, **given)),
        (metrics.calibration(labels, shares, weights), (shares @ weights) / (labels @ weights)),
    ]:
        assert ours == pytest.approx(theirs)
    of_classes, classes = rng.dirichlet(np.ones(4), 400), rng.integers(0, 4, 400)
    assert metrics.class_log_loss(classes, of_classes, weights) == pytest.approx(
        sklearn.metrics.log_loss(classes, of_classes, **given)
    )
    assert metrics.class_accuracy(classes, of_classes, weights) == pytest.approx(
        sklearn.metrics.accuracy_score(classes, of_classes.argmax(axis=1), **given)
    )


@pytest.mark.parametrize("name", ["auc", "gauc", "log_loss", "accuracy", "calibration", "calibration_error"])
def test_a_weight_counts_as_so_many_rows_in_the_metrics_of_a_task(name: str) -> None:
    rng = np.random.default_rng(8)
    labels, scores, groups = rng.integers(0, 2, 300), rng.integers(0, 9, 300) / 8, rng.integers(0, 40, 300)
    times = rng.integers(0, 4, 300)
    task = TaskConfig(label="liked", group="user", metrics=(name,))
    again = np.repeat(np.arange(300), times)
    assert measure(task, labels, scores, groups, times) == pytest.approx(
        measure(task, labels[again], scores[again], groups[again])
    )


def test_rows_without_a_label_are_left_out_of_every_metric() -> None:
    labels, scores, groups = ranked_rows(9)
    labels = (labels > 0).astype(float)
    missing = np.random.default_rng(9).random(len(labels)) < 0.3
    task = TaskConfig(label="liked", group="user", metrics=("auc", "gauc", "log_loss", "ndcg@3", "mrr"))
    scores = 1 / (1 + np.exp(-scores))
    known = measure(task, labels[~missing], scores[~missing], groups[~missing], groups[~missing] % 3)
    assert measure(task, np.where(missing, np.nan, labels), scores, groups, groups % 3) == known
    assert all(math.isnan(value) for value in measure(task, labels * np.nan, scores, groups).values())


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [1.0, math.nan], [1.0, math.inf]])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    for metric in (metrics.auc, metrics.log_loss, metrics.rmse, metrics.calibration, metrics.calibration_error):
        with pytest.raises(InvalidInput, match="weights"):
            metric([0, 1], [0.2, 0.4], weights)


def test_a_task_gets_the_metrics_that_it_asks_for() -> None:
    labels, scores, groups = ranked_rows(6)
    task = TaskConfig(label="stars", loss="listwise", group="user", metrics=("ndcg@3", "recall@2", "gauc", "auc"))
    found = measure(task, labels, scores, groups)
    assert found == {
        "ndcg@3": metrics.ndcg(labels, scores, groups, k=3),
        "recall@2": metrics.recall(labels, scores, groups, k=2),
        "gauc": metrics.gauc(labels, scores, groups),
        "auc": metrics.auc(labels > 0, scores),
    }
