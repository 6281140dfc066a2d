"""Computes the metrics that a task asks for, by their names in a configuration."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.evaluation.binary import accuracy, auc, log_loss
from trainer.evaluation.calibration import calibration, calibration_error
from trainer.evaluation.classes import class_accuracy, class_log_loss
from trainer.evaluation.groups import gauc, mrr, ndcg, recall
from trainer.evaluation.regression import mae, rmse
from trainer.task_config import RANKING_LOSSES, RETRIEVAL, TaskConfig

Array = np.ndarray[Any, np.dtype[Any]]

_OF_PAIRS = {
    "accuracy": accuracy,
    "auc": auc,
    "calibration": calibration,
    "calibration_error": calibration_error,
    "log_loss": log_loss,
    "mae": mae,
    "rmse": rmse,
}
_OF_CLASSES = {"accuracy": class_accuracy, "log_loss": class_log_loss}
_AT_DEPTH = {"ndcg": ndcg, "recall": recall}


def measure(
    task: TaskConfig, labels: Array, scores: Array, groups: Array | None, weights: Array | None = None
) -> dict[str, float]:
    """Returns the task's metrics by name, nan where one cannot be computed of these rows.

    labels: (N,), NaN for rows without one, which are left out. scores: (N,), or (N, C) for C classes. groups: (N,), for
    metrics that rank. weights: (N,), how much each row counts; None: all alike.
    """
    present = ~np.isnan(labels)
    if not present.all():
        labels, scores = labels[present], scores[present]
        groups, weights = (None if each is None else each[present] for each in (groups, weights))
    return {name: _metric(name, task, labels, scores, groups, weights) for name in task.measured}


def recent_text(task: TaskConfig, labels: Array, logits: Array) -> str:
    """Returns how the last rows went, for a progress bar; "" for a task that ranks, whose groups are not whole there.

    labels: (N,). logits: (N, W), the values of the task's head.
    """
    if task.loss in (*RANKING_LOSSES, RETRIEVAL):
        return ""
    present = ~np.isnan(labels)
    labels, logits = labels[present], logits[present]
    if task.loss == "softmax_cross_entropy":
        return f"accuracy {class_accuracy(labels, logits):.4f}"
    if task.loss == "mean_squared_error":
        return f"rmse {rmse(labels, logits):.4f}"
    return f"auc {auc(labels, logits):.4f}"


def _metric(
    name: str, task: TaskConfig, labels: Array, scores: Array, groups: Array | None, weights: Array | None
) -> float:
    kind, _, depth = name.partition("@")
    if task.classes is not None:
        return _OF_CLASSES[kind](labels, scores, weights)
    if kind in _OF_PAIRS:
        if task.loss in RANKING_LOSSES:
            labels = labels > 0
        return _OF_PAIRS[kind](labels, scores, weights)
    assert groups is not None
    if kind == "gauc":
        return gauc(labels, scores, groups, weights)
    # The place of a row in its group has no weight.
    return _AT_DEPTH[kind](labels, scores, groups, k=int(depth)) if depth else mrr(labels, scores, groups)
