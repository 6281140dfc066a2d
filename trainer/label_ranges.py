"""Notices labels that hold nothing to learn: only one value of them among the rows, or none at all.

B rows of a batch, T tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trainer.task_config import RETRIEVAL, Targets, TaskConfig

#: The smallest and the largest label of a task, by its name; a task without a label so far is not there.
Ranges = dict[str, list[float]]

_WITHOUT = {
    "auc": "their labels are all of one kind",
    "gauc": "no group of them holds labels of both kinds",
    "calibration": "their labels add up to 0",
    "ndcg": "none of them has a label above 0",
    "recall": "none of them has a label above 0",
    "mrr": "none of them has a label above 0",
}


def widened(ranges: Ranges | None, labels: Tensor, tasks: Sequence[TaskConfig]) -> Ranges:
    """Returns the ranges with the labels (B, T) of a batch; NaN is no label."""
    before: Ranges = {} if ranges is None else ranges
    if not len(labels) or all(task.name in before and before[task.name][0] < before[task.name][1] for task in tasks):
        return before
    missing = labels.isnan()
    lows = torch.where(missing, torch.inf, labels).amin(dim=0).tolist()
    highs = torch.where(missing, -torch.inf, labels).amax(dim=0).tolist()
    found: Ranges = {}
    for task, low, high in zip(tasks, lows, highs, strict=True):
        known = [*before.get(task.name, []), *([low, high] if low <= high else [])]
        if known:
            found[task.name] = [min(known), max(known)]
    return found


def joined_ranges(ranges: Sequence[Ranges | None]) -> Ranges | None:
    """Returns the ranges of all rows of which those given have a part each."""
    known = [each for each in ranges if each is not None]
    names = dict.fromkeys(name for each in known for name in each)
    joined = {name: [value for each in known for value in each.get(name, [])] for name in names}
    return {name: [min(values), max(values)] for name, values in joined.items()} if known else None


def label_warnings(ranges: Ranges | None, targets: Targets, negative_sampling: float = 1.0) -> list[str]:
    """Returns a sentence for each task whose labels, of all rows that were trained on, leave nothing to learn.

    ranges: None when no row was trained on. negative_sampling: the share of rows with label 0 that was kept.
    """
    if ranges is None:
        return []
    found = []
    for task in targets.tasks:
        about = f"the task {task.name!r} (label {task.label.described()})"
        if task.name not in ranges:
            found.append(f"{about} has learned nothing: no row that was trained on has its label")
            continue
        low, high = ranges[task.name]
        if low == high and not (task.loss == RETRIEVAL and high > 0):
            cause = ""
            if negative_sampling < 1.0 and high == 1.0:
                cause = f", as data.negative_sampling ({negative_sampling:g}) left no row with label 0,"
            found.append(
                f"{about} has nothing to tell apart: every label that was trained on is {high:g}{cause}; check the "
                "column, and the rows"
            )
    return found


def metric_warnings(metrics: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """Returns a sentence for each metric of an evaluation, by task and name, that its rows did not allow."""
    return [
        f"the task {task!r} has no {name} on the rows to evaluate on: "
        f"{_WITHOUT.get(name.partition('@')[0], 'none of them has a label and a weight')}"
        for task, values in metrics.items()
        for name, value in values.items()
        if value is None
    ]
