"""Scores of a model over Parquet rows. Nothing here changes a model or a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from trainer.data import BatchMaker, DataRows, Prefetcher, RowStream, located
from trainer.metrics import auc, log_loss
from trainer.progress import Display

EVALUATION_ROWS = 4096

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Evaluation:
    """Labels and scores of some rows, in their order."""

    #: The labels, (N,) float32.
    labels: Array
    #: The scores, (N,) float32.
    scores: Array

    @property
    def auc(self) -> float:
        """Area under the ROC curve; nan with one class only."""
        return auc(self.labels, self.scores)

    @property
    def log_loss(self) -> float:
        """Mean log-loss in nats."""
        return log_loss(self.labels, self.scores)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Puts the module in eval() for the block, and every part of it back into its mode afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def evaluate(
    model: nn.Module, rows: DataRows, maker: BatchMaker, display: Display | None = None, *, what: str = "evaluating"
) -> Evaluation:
    """Returns the scores of all rows beside their labels."""
    stream = RowStream(rows, EVALUATION_ROWS)
    if display:
        display.begin(what, stream.batches)
    labels: list[Array] = []
    scores: list[Array] = []
    batches = map(located(maker.batch, stream, 0), enumerate(stream.epoch(0)))
    with evaluation_mode(model), torch.inference_mode(), Prefetcher(batches) as prefetched:
        for batch in prefetched:
            labels.append(batch.labels.numpy().reshape(-1))
            scores.append(model(batch.inputs)["score"].numpy().reshape(-1))
            if display:
                display.advance()
    if not scores:
        return Evaluation(np.empty(0, np.float32), np.empty(0, np.float32))
    return Evaluation(np.concatenate(labels), np.concatenate(scores))


def predict_rows(model: nn.Module, rows: DataRows, maker: BatchMaker) -> Array:
    """Returns the scores of all rows, (N,) float32; no label is read."""
    scores: list[Array] = []
    stream = RowStream(rows, EVALUATION_ROWS)
    batches = map(located(maker.inputs, stream, 0), enumerate(stream.epoch(0)))
    with evaluation_mode(model), torch.inference_mode(), Prefetcher(batches) as prefetched:
        scores += [model(inputs)["score"].numpy().reshape(-1) for inputs in prefetched]
    return np.concatenate(scores) if scores else np.empty(0, np.float32)
