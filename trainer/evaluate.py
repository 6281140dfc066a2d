"""Scores of a model over rows. Nothing here changes a model or a table.

N rows, C classes of a task, T tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from storage.errors import ConfigError
from trainer.data import Batch, BatchMaker, DataRows, Prefetcher, RowStream, device_of, inputs_on, located
from trainer.data.targets import group_numbers
from trainer.evaluation.retrieval import retrieval_metric, retrieval_places
from trainer.metrics import auc, log_loss, measure
from trainer.models.own_code import own_errors
from trainer.models.two_tower import TwoTower
from trainer.progress import Display
from trainer.ranks import Ranks
from trainer.report import Metrics, finite_or_none
from trainer.task_config import TOWERS, TaskConfig

EVALUATION_ROWS = 4096

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class TaskEvaluation:
    """Labels and scores of one task for some rows, in their order."""

    task: TaskConfig
    #: The labels, (N,) float32; NaN for rows without one, which metrics leave out.
    labels: Array
    #: The scores, (N,) float32, or (N, C) for a task of C classes.
    scores: Array
    #: The number of each row's group, (N,) int64; None for a task without groups.
    groups: Array | None = None
    #: Of two towers: the embeddings of the rows' users and items, (N, D) each, and the items' ids, (N,) int64.
    towers: tuple[Array, Array, Array] | None = None
    #: How much each row counts, (N,) float32; None: all alike.
    weights: Array | None = None

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics that the task asks for, by name; nan where these rows do not allow one."""
        if self.towers is not None:
            places = retrieval_places(self.labels, *self.towers)
            weights = None if self.weights is None else self.weights[self.labels > 0]
            return {name: retrieval_metric(name, places, weights) for name in self.task.measured}
        return measure(self.task, self.labels, self.scores, self.groups, self.weights)


@dataclass(frozen=True)
class Evaluation:
    """Labels and scores of some rows, by task."""

    tasks: Mapping[str, TaskEvaluation]
    #: The metrics of all rows, of which this process has a part; None where it has all.
    shared: Metrics | None = None

    @property
    def first(self) -> TaskEvaluation:
        """The only task, or the first of several."""
        return next(iter(self.tasks.values()))

    @property
    def labels(self) -> Array:
        """The labels of the first task, (N,) float32."""
        return self.first.labels

    @property
    def scores(self) -> Array:
        """The scores of the first task, (N,) float32, or (N, C)."""
        return self.first.scores

    @property
    def auc(self) -> float:
        """Area under the ROC curve of the first task, which is binary; nan with one class only."""
        return auc(*self._first)

    @property
    def log_loss(self) -> float:
        """Mean log-loss in nats of the first task, which is binary."""
        return log_loss(*self._first)

    @property
    def _first(self) -> tuple[Array, Array, Array | None]:
        first = self.first
        present = ~np.isnan(first.labels)
        return first.labels[present], first.scores[present], None if first.weights is None else first.weights[present]

    @property
    def metrics(self) -> Metrics:
        """All metrics, by task and name; None where these rows do not allow one."""
        if self.shared is not None:
            return self.shared
        return {
            name: {metric: finite_or_none(value) for metric, value in task.metrics.items()}
            for name, task in self.tasks.items()
        }


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


@dataclass(frozen=True)
class _Scored:
    """Labels and scores of consecutive rows. `towers`: as in TaskEvaluation, or nothing."""

    #: (N, T)
    labels: Array
    scores: dict[str, Array]
    #: The values of each column that makes groups, as pyarrow arrays.
    groups: dict[str, list[Any]]
    weights: Array | None
    towers: tuple[Array, ...]


def evaluate(
    model: nn.Module,
    rows: DataRows,
    maker: BatchMaker,
    display: Display | None = None,
    *,
    what: str = "evaluating",
    ranks: Ranks | None = None,
) -> Evaluation:
    """Returns the scores of all rows beside their labels.

    ranks: those that share the rows, and call this together. Metrics are those of all rows at each of them; labels and
    scores are, too, at the first one, and those of its own rows at each other.
    """
    if ranks is None or not ranks.are_several:
        return _evaluation([_scored(model, rows, maker, display, what)], maker)
    bounds = [rows.rows * rank // ranks.size for rank in range(ranks.size + 1)]
    own = rows.range(bounds[ranks.rank], bounds[ranks.rank + 1])
    # The ranks bring each other rows, so each evaluates as many batches as the one with the most.
    most = max(-(-(end - start) // EVALUATION_ROWS) for start, end in pairwise(bounds))
    missing = most - -(-own.rows // EVALUATION_ROWS)
    idle = [maker.batch(rows.range(0, 1).read())] * missing
    found = _scored(model, own, maker, display, what, idle)
    parts = ranks.gather_at_first(found)
    whole = _evaluation(parts or [found], maker)
    return replace(whole, shared=ranks.from_first(whole.metrics if ranks.is_first else {}))


def _scored(
    model: nn.Module,
    rows: DataRows,
    maker: BatchMaker,
    display: Display | None,
    what: str,
    idle: Sequence[Batch] = (),
) -> _Scored:
    """Scores rows. idle: batches that are computed as well, and forgotten."""
    targets = maker.targets
    stream, device = RowStream(rows, EVALUATION_ROWS), device_of(model)
    if display:
        display.begin(what, stream.batches)
    labels = [np.empty((0, len(targets.tasks)), np.float32)]
    scores: dict[str, list[Array]] = {task.name: [_no_rows(task)] for task in targets.tasks}
    groups: dict[str, list[Any]] = {column: [] for column in targets.groups}
    weights: list[Array] = []
    towers: tuple[list[Array], ...] = ([], [], [])
    batches = map(located(maker.batch, stream, 0), enumerate(stream.epoch(0)))
    with evaluation_mode(model), torch.inference_mode(), Prefetcher(batches) as prefetched:
        for batch in prefetched:
            labels.append(batch.labels.numpy())
            if batch.weights is not None:
                weights.append(batch.weights.numpy().reshape(-1))
            with own_errors(model, "the evaluation"):
                outputs = _on_host(model(inputs_on(device, batch.inputs)))
            for task in targets.tasks:
                scores[task.name].append(_scores(task, outputs, batch.rows))
            if isinstance(model, TwoTower):
                found = (*(outputs[name].numpy() for name in TOWERS), model.item_ids(batch.inputs))
                for parts, part in zip(towers, found, strict=True):
                    parts.append(part)
            for column, values in batch.groups.items():
                groups[column] += values.chunks
            if display:
                display.advance()
        for batch in idle:
            model(inputs_on(device, batch.inputs))
    return _Scored(
        np.concatenate(labels),
        {name: np.concatenate(parts) for name, parts in scores.items()},
        groups,
        np.concatenate(weights) if weights else None,
        tuple(np.concatenate(parts) for parts in towers if parts),
    )


def _evaluation(parts: Sequence[_Scored], maker: BatchMaker) -> Evaluation:
    """Joins the scores of consecutive rows."""
    targets = maker.targets
    truth = np.concatenate([part.labels for part in parts])
    weights = [part.weights for part in parts if part.weights is not None]
    factors = np.concatenate(weights) if weights else None
    embedded = [np.concatenate(of) for of in zip(*(part.towers for part in parts if part.towers), strict=True)]
    chunks = {column: [each for part in parts for each in part.groups[column]] for column in targets.groups}
    numbers = {column: group_numbers(pa.chunked_array(each)) for column, each in chunks.items() if each}
    return Evaluation(
        {
            task.name: TaskEvaluation(
                task,
                truth[:, place],
                np.concatenate([part.scores[task.name] for part in parts]),
                numbers.get(task.group or ""),
                (embedded[0], embedded[1], embedded[2]) if embedded else None,
                factors,
            )
            for place, task in enumerate(targets.tasks)
        }
    )


def predict_rows(model: nn.Module, rows: DataRows, maker: BatchMaker) -> dict[str, Array]:
    """Returns all outputs of the model by name, (N,) or (N, C) float32; no label is read."""
    found: dict[str, list[Array]] = {}
    stream = RowStream(rows, EVALUATION_ROWS)
    batches, device = map(located(maker.inputs, stream, 0), enumerate(stream.epoch(0))), device_of(model)
    with evaluation_mode(model), torch.inference_mode(), Prefetcher(batches) as prefetched:
        for inputs in prefetched:
            with own_errors(model, "scoring"):
                outputs = _on_host(model(inputs_on(device, inputs)))
            for name, values in outputs.items():
                found.setdefault(name, []).append(values.numpy())
    joined = {name: np.concatenate(parts) for name, parts in found.items()}
    return {name: values.reshape(-1) if values.shape[1:] == (1,) else values for name, values in joined.items()}


def _on_host(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: values.cpu() if isinstance(values, Tensor) else values for name, values in outputs.items()}


def _scores(task: TaskConfig, outputs: Mapping[str, Tensor], rows: int) -> Array:
    output = outputs.get(task.name)
    if output is None or output.shape != (rows, task.width):
        given = "no" if output is None else f"a {tuple(output.shape)}"
        raise ConfigError(
            f"model: its forward gave {given} output {task.name!r}, expected {(rows, task.width)}", field="model.type"
        )
    if not bool(torch.isfinite(output).all()):
        raise ConfigError(
            f"evaluation: the output {task.name!r} holds values that are not finite: the last steps made weights or "
            "rows too large; lower optimizer.dense.lr or optimizer.sparse.lr",
            field="optimizer",
        )
    return output.numpy() if task.classes else output.numpy().reshape(-1)


def _no_rows(task: TaskConfig) -> Array:
    return np.empty((0, task.classes) if task.classes else 0, np.float32)
