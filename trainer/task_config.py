"""The tasks of a model: what it learns to predict, from which label, with which loss, and how well it does is measured.

B rows of a batch, T tasks, K values of all heads together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import Field, field_validator, model_validator

from storage.features.strict_model import StrictModel, did_you_mean
from trainer.label_config import Label, LabelConfig

Loss = Literal[
    "binary_cross_entropy",
    "mean_squared_error",
    "softmax_cross_entropy",
    "pairwise",
    "listwise",
    "in_batch_softmax",
]
#: Losses that compare the rows of a group.
RANKING_LOSSES = ("pairwise", "listwise")
#: The loss of two towers, whose metrics rank all items.
RETRIEVAL = "in_batch_softmax"
#: The name of a task that is given none, and so of its output.
ONLY_TASK = "score"

#: The outputs of two towers beside the score.
TOWERS = ("user_embedding", "item_embedding")

_RANKING_METRICS = ("ndcg", "recall", "mrr", "gauc")
_BY_LOSS = {
    "binary_cross_entropy": ("auc", "log_loss", "accuracy", "calibration", "calibration_error", *_RANKING_METRICS),
    "mean_squared_error": ("rmse", "mae", "calibration"),
    "softmax_cross_entropy": ("accuracy", "log_loss"),
    "pairwise": ("auc", *_RANKING_METRICS),
    "listwise": ("auc", *_RANKING_METRICS),
    RETRIEVAL: ("recall", "mrr"),
}
_USUAL: dict[str, tuple[str, ...]] = {
    "binary_cross_entropy": ("auc", "log_loss"),
    "mean_squared_error": ("rmse", "mae"),
    "softmax_cross_entropy": ("accuracy", "log_loss"),
    "pairwise": ("ndcg@10", "mrr"),
    "listwise": ("ndcg@10", "mrr"),
    RETRIEVAL: ("recall@10", "recall@100", "mrr"),
}
_WITH_DEPTH = ("ndcg", "recall")
_DEPTH = re.compile(r"[1-9][0-9]{0,5}")
# A part of the names of weights, in a graph too.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class TaskConfig(StrictModel):
    """One task: a label, and a head that predicts it. The served output has the task's name."""

    name: str = ONLY_TASK
    #: The column of the label, or a comparison that makes one.
    label: Label
    loss: Loss = "binary_cross_entropy"
    #: Factor of the task's loss in that of the model.
    weight: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    #: An earlier binary task without which this one does not happen: the probability of both is learned of all rows.
    given: str | None = None
    #: Whether a row without a label (null, NaN) is an error, or counts for the other tasks alone.
    missing_label: Literal["error", "ignore"] = "error"
    #: Classes of softmax_cross_entropy; its labels are 0 to classes - 1.
    classes: int | None = Field(default=None, ge=2, le=65_536)
    #: The column whose equal values make a group, for losses and metrics that rank.
    group: str | None = None
    #: What is computed on the validation rows; None: what is usual for the loss.
    metrics: tuple[str, ...] | None = None

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError("expected letters, digits and _, not a digit first, 64 at most")
        return name

    @model_validator(mode="after")
    def _consistent(self) -> TaskConfig:
        if (self.classes is not None) != (self.loss == "softmax_cross_entropy"):
            need = "softmax_cross_entropy needs `classes`" if self.classes is None else f"{self.loss} has no `classes`"
            raise ValueError(f"{need}; expected the number of classes for softmax_cross_entropy alone")
        if self.given is not None and self.loss != "binary_cross_entropy":
            raise ValueError(f"given: is for binary_cross_entropy, whose output is a probability, got {self.loss}")
        if self.loss in RANKING_LOSSES and self.group is None:
            raise ValueError(f"{self.loss} needs `group`, the column whose equal values make a list")
        for metric in self.metrics or ():
            self._check_metric(metric)
        return self

    def _check_metric(self, metric: str) -> None:
        kind, at, depth = metric.partition("@")
        accepted = _BY_LOSS[self.loss]
        if kind not in accepted:
            near = did_you_mean(kind, accepted)
            raise ValueError(f"metrics: {metric!r} is no metric of {self.loss}{near or f'; expected {accepted}'}")
        if (kind in _WITH_DEPTH) != bool(at) or (at and not _DEPTH.fullmatch(depth)):
            raise ValueError(f"metrics: {metric!r}, expected {f'{kind}@10' if kind in _WITH_DEPTH else kind}")
        if kind in _RANKING_METRICS and self.group is None and self.loss != RETRIEVAL:
            raise ValueError(f"metrics: {metric!r} needs `group`, the column whose equal values make a list")

    @property
    def width(self) -> int:
        """Values of the task's head, and of its output."""
        return self.classes or 1

    @property
    def conditional(self) -> str:
        """The name of the second output of a task with `given`: the probability of its label where that happened."""
        return f"{self.name}_given_{self.given}"

    @property
    def measured(self) -> tuple[str, ...]:
        """The metrics that are computed on the validation rows."""
        return _USUAL[self.loss] if self.metrics is None else self.metrics


@dataclass(frozen=True)
class Targets:
    """All that is learned: the tasks, and the column by which rows count more or less."""

    tasks: tuple[TaskConfig, ...]
    sample_weight: str | None = None
    #: The field of the configuration for each task, for messages.
    fields: tuple[str, ...] = ()

    @classmethod
    def of(cls, label: LabelConfig | None, tasks: Sequence[TaskConfig], sample_weight: str | None = None) -> Targets:
        """Returns the tasks of a configuration: those that are given, or the binary one of `label`."""
        if label is not None:
            return cls((TaskConfig(label=label),), sample_weight, ("",))
        return cls(tuple(tasks), sample_weight, tuple(f"tasks.{place}." for place in range(len(tasks))))

    @property
    def width(self) -> int:
        """Values of all heads together, K."""
        return sum(task.width for task in self.tasks)

    @property
    def heads(self) -> tuple[tuple[str, int], ...]:
        """The names of the heads and how many values each has, in order."""
        return tuple((task.name, task.width) for task in self.tasks)

    @cached_property
    def numbers(self) -> dict[str, str]:
        """The columns of numbers that are read for training, and the field of the configuration that names each."""
        found: dict[str, str] = {}
        for field, task in zip(self.fields, self.tasks, strict=True):
            if not task.label.is_text:
                found.setdefault(task.label.column, f"{field}label")
        if self.sample_weight is not None:
            found.setdefault(self.sample_weight, "sample_weight")
        return found

    @cached_property
    def texts(self) -> dict[str, str]:
        """The same of columns of text, with which labels are compared."""
        tasks = zip(self.fields, self.tasks, strict=True)
        return {task.label.column: f"{field}label" for field, task in tasks if task.label.is_text}

    @cached_property
    def groups(self) -> dict[str, str]:
        """The columns that make groups, and the field of the configuration that names each."""
        found: dict[str, str] = {}
        for field, task in zip(self.fields, self.tasks, strict=True):
            if task.group is not None:
                found.setdefault(task.group, f"{field}group")
        return found


def check_tasks(label: LabelConfig | None, tasks: Sequence[TaskConfig], model: str) -> None:
    """Raises ValueError unless there is a label, or tasks of different names, that the type of model can learn."""
    if (label is None) == (not tasks):
        raise ValueError(
            "label: missing; name the column of 0 and 1 that is learned, or list `tasks`"
            if label is None
            else "label: is the short form of one binary task; leave it out beside `tasks`"
        )
    retrieves = [task.loss == RETRIEVAL for task in tasks]
    if model == "two_tower" and retrieves != [True]:
        raise ValueError(f"tasks: two_tower learns one task; expected one of the loss {RETRIEVAL}")
    if model != "two_tower" and any(retrieves):
        raise ValueError(f"tasks: {RETRIEVAL} is the loss of the model two_tower, got {model}")
    if model == "two_tower" and tasks[0].name in TOWERS:
        raise ValueError(f"tasks.0.name: {tasks[0].name!r} is another output of the model; choose another name")
    texts = {task.label.column for task in tasks if task.label.is_text}
    for place, task in enumerate(tasks):
        if not task.label.is_text and task.label.column in texts:
            raise ValueError(f"tasks.{place}.label: {task.label.column!r} is compared with text by another task")
    names = [task.name for task in tasks]
    if len(set(names)) < len(tasks):
        raise ValueError(f"tasks: expected a name of its own for each, got {names}")
    for place, task in enumerate(tasks):
        _check_given(task, tasks[:place], names, f"tasks.{place}")


def _check_given(task: TaskConfig, earlier: Sequence[TaskConfig], names: Sequence[str], where: str) -> None:
    if task.given is None:
        return
    binary = [each.name for each in earlier if each.loss == "binary_cross_entropy"]
    if task.given not in binary:
        raise ValueError(
            f"{where}.given: {task.given!r} is no earlier binary task"
            f"{did_you_mean(task.given, binary) or f'; expected one of {binary}, which stand above it'}"
        )
    if task.conditional in names:
        raise ValueError(f"{where}.given: makes the output {task.conditional!r}, which is the name of a task too")
