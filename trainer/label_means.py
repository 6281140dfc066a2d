"""Lets regressions begin at the mean label, so that the first steps need not cover the way from 0 to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from storage.errors import InvalidInput
from trainer.data.targets import read_labels, read_weights
from trainer.models import RankingModel
from trainer.task_config import Targets

#: The mean is that of at least so many rows, if there are.
_ROWS = 8_192


def begin_at_means(model: RankingModel, batches: Iterable[Any], targets: Targets) -> None:
    """Sets the output biases of regressions to the mean of their labels, by the rows' weights.

    batches: pyarrow Tables in the order of training, of which the first ones are read. A model without output biases
    stays as it is.
    """
    regressions = [task.loss == "mean_squared_error" for task in targets.tasks]
    biases = model.output_biases()
    if not any(regressions) or not biases:
        return
    total = torch.zeros(len(regressions), dtype=torch.float64)
    weight, rows = torch.zeros(len(regressions), dtype=torch.float64), 0
    for table in batches:
        try:
            labels, weights = read_labels(table, targets).double(), read_weights(table, targets)
        except InvalidInput:
            return  # training meets the same row, and says where it is
        factors = torch.ones(len(labels), 1, dtype=torch.float64) if weights is None else weights.double()
        present = ~labels.isnan()
        total += torch.where(present, labels * factors, 0.0).sum(dim=0)
        weight += torch.where(present, factors, 0.0).sum(dim=0)
        rows += len(labels)
        if rows >= _ROWS:
            break
    means = total / weight  # NaN without any weight
    # The value of each head, NaN where it stays.
    wanted = torch.cat(
        [
            torch.full((task.width,), float(mean) if is_regression else torch.nan)
            for task, mean, is_regression in zip(targets.tasks, means, regressions, strict=True)
        ]
    )
    with torch.no_grad():
        for bias, values in zip(biases, torch.split(wanted, [len(bias) for bias in biases]), strict=True):
            bias.copy_(torch.where(values.isnan().to(bias.device), bias, values.to(bias)))
