"""The loss of a batch: that of each task by its weight, added.

B rows, T tasks, K values of all heads together, C classes, P pairs, G groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from storage.errors import InvalidInput
from trainer.data.batches import Batch
from trainer.data.targets import group_numbers
from trainer.task_config import RANKING_LOSSES, Targets, TaskConfig

Array = np.ndarray[Any, np.dtype[Any]]

# Two int64 a pair, and some more while it is made: about 2 GB.
_PAIRS_AT_MOST = 1 << 26


def joint_logits(logits: Tensor, tasks: Sequence[TaskConfig]) -> Tensor:
    """Returns the heads (B, K) with the log-odds that both happen, for each task with `given`.

    Its head has the log-odds that it happens where the given task did. Source: Ma et al., "Entire Space Multi-Task
    Model: An Effective Approach for Estimating Post-Click Conversion Rate", 2018.
    """
    if not any(task.given for task in tasks):
        return logits
    heads: dict[str, Tensor] = {}
    for task, head in zip(tasks, torch.split(logits, [task.width for task in tasks], dim=1), strict=True):
        if task.given is not None:
            first = heads[task.given]
            happens = functional.logsigmoid(first) + functional.logsigmoid(head)
            # Either the first does not happen, or it does and the second does not.
            does_not = torch.logaddexp(
                functional.logsigmoid(-first), functional.logsigmoid(first) + functional.logsigmoid(-head)
            )
            head = happens - does_not
        heads[task.name] = head
    return torch.cat([heads[task.name] for task in tasks], dim=1)


def batch_loss(logits: Tensor, batch: Batch, targets: Targets) -> Tensor:
    """Returns the loss of a batch, a scalar. logits: (B, K), the values of the heads in the order of the tasks.

    A row's weight is a factor of its loss, and the loss of a batch is the mean over its rows with a label, 0 without
    any; of a pair, it is the weight of the row that should come first, and of a list, that of its rows by their labels.
    Of a part of a batch (batch.whole) it is the part in the loss of all rows.
    """
    whole = batch.whole
    total: Tensor | None = None
    at = 0
    for place, task in enumerate(targets.tasks):
        head, labels, weights = logits[:, at : at + task.width], batch.labels[:, place : place + 1], batch.weights
        groups = batch.groups[task.group] if task.loss in RANKING_LOSSES and task.group else None
        if groups is not None and whole is not None:
            head, labels, groups = whole.beside_others(head), whole.constants(labels), whole.column(groups)
            weights = None if weights is None else whole.constants(weights)
        numbers = None if groups is None else group_numbers(groups)
        if task.missing_label == "ignore" and not (present := ~labels.isnan().squeeze(1)).all():
            head, labels = head[present], labels[present]
            weights = None if weights is None else weights[present]
            numbers = None if numbers is None else numbers[present.cpu().numpy()]
        loss = _task_loss(task, head, labels, weights, numbers) if len(labels) else (head * 0.0).sum()
        if whole is not None and numbers is not None:
            loss = whole.alike(loss)
        elif whole is not None and task.missing_label == "ignore":
            loss = whole.mean(loss, len(labels))
        if task.weight != 1.0:
            loss = task.weight * loss
        total = loss if total is None else total + loss
        at += task.width
    assert total is not None
    return total


def _task_loss(
    task: TaskConfig, logits: Tensor, labels: Tensor, weights: Tensor | None, numbers: Array | None
) -> Tensor:
    if numbers is not None:
        rank = pairwise_loss if task.loss == "pairwise" else listwise_loss
        return rank(logits.squeeze(1), labels.squeeze(1), numbers, None if weights is None else weights.squeeze(1))
    reduction = "mean" if weights is None else "none"
    match task.loss:
        case "binary_cross_entropy":
            losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction=reduction)
        case "mean_squared_error":
            losses = functional.mse_loss(logits, labels, reduction=reduction)
        case _:
            losses = functional.cross_entropy(logits, labels.squeeze(1).long(), reduction=reduction)
    return losses if weights is None else (losses.reshape(-1, 1) * weights).mean()


def pairwise_loss(scores: Tensor, labels: Tensor, groups: Array, weights: Tensor | None = None) -> Tensor:
    """Returns the mean of log(1 + exp(low - high)) over all pairs of a group with different labels (BPR).

    scores, labels, weights: (B,). groups: (B,) int64. Zero without a pair. Source: Rendle et al., "BPR: Bayesian
    Personalized Ranking from Implicit Feedback", 2009.
    """
    high, low = _pairs(labels.cpu().numpy(), groups)
    if len(high) == 0:
        return (scores * 0.0).sum()
    first, second = (torch.from_numpy(each).to(scores.device) for each in (high, low))
    losses = functional.softplus(scores[second] - scores[first])
    return losses.mean() if weights is None else (losses * weights[first]).mean()


def listwise_loss(scores: Tensor, labels: Tensor, groups: Array, weights: Tensor | None = None) -> Tensor:
    """Returns the mean cross-entropy, over groups, of a group's labels as shares with the softmax of its scores.

    scores, labels, weights: (B,). groups: (B,) int64. Groups whose labels are all 0 are left out; zero without another.
    Source: Cao et al., "Learning to Rank: From Pairwise Approach to Listwise Approach", 2007 (the top-one ListNet).
    """
    names, numbers = np.unique(groups, return_inverse=True)
    place = torch.from_numpy(numbers).to(scores.device)
    totals = labels.new_zeros(len(names)).index_add(0, place, labels)
    used = int((totals > 0).sum())
    if used == 0:
        return (scores * 0.0).sum()
    highest = scores.new_full((len(names),), -torch.inf).scatter_reduce(0, place, scores.detach(), "amax")
    shifted = scores - highest[place]
    log_shares = shifted - scores.new_zeros(len(names)).index_add(0, place, shifted.exp()).log()[place]
    wanted = labels / totals.clamp_min(torch.finfo(labels.dtype).tiny)[place]
    if weights is not None:
        wanted = wanted * weights
    return -(wanted * log_shares).sum() / used


def _pairs(labels: Array, groups: Array) -> tuple[Array, Array]:
    """Returns the rows (P,) int64 of all pairs of a group: the one with the higher label, and the other."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    sizes = np.searchsorted(ordered, ordered, side="right") - starts
    if int(sizes.sum()) > _PAIRS_AT_MOST:
        raise InvalidInput(
            f"a batch has {int(sizes.sum()):,} pairs of rows of one group, expected {_PAIRS_AT_MOST:,} at most; lower "
            "training.batch_size, or use the loss listwise",
            field="training.batch_size",
        )
    first = np.repeat(np.arange(len(order)), sizes)
    second = np.arange(len(first)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + np.repeat(starts, sizes)
    first, second = order[first], order[second]
    kept = labels[first] > labels[second]
    return first[kept], second[kept]
