"""Reads what a batch is learned from: labels, weights and groups of its rows, each checked against its task.

B rows, T tasks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from storage.errors import InvalidInput
from trainer.task_config import Targets, TaskConfig

Array = np.ndarray[Any, np.dtype[Any]]

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def read_labels(table: Any, targets: Targets) -> Tensor:
    """Returns the labels of a pyarrow Table, (B, T) float32, in the order of the tasks; NaN where one may be missing.

    Raises InvalidInput naming the column and the task for a null, or a value that is no label of the task's loss.
    """
    labels = np.empty((table.num_rows, len(targets.tasks)), np.float32)
    for place, task in enumerate(targets.tasks):
        try:
            may_miss = task.missing_label == "ignore"
            values = task.label.read(table, may_miss=may_miss)
            _check_labels(task, values[~np.isnan(values)] if may_miss else values)
        except InvalidInput as error:
            if len(targets.tasks) == 1:
                raise
            raise InvalidInput(f"task {task.name!r}: {error}", field=error.field) from None
        labels[:, place] = values
    return torch.from_numpy(labels)


def read_weights(table: Any, targets: Targets) -> Tensor | None:
    """Returns the weights of the rows, (B, 1) float32; None when all count alike. Raises InvalidInput as labels do."""
    column = targets.sample_weight
    if column is None:
        return None
    given, about = table.column(column), f"the column {column!r} of sample_weight"
    if given.null_count:
        raise InvalidInput(f"{about} holds nulls; leave such rows out", field=column)
    values = np.asarray((given.cast(pa.uint8()) if pa.types.is_boolean(given.type) else given).to_numpy())
    _refuse(about, values, ~((values >= 0) & (values <= _LARGEST_FLOAT32)), "numbers of 0 or more", column)
    return torch.from_numpy(values.astype(np.float32)).unsqueeze(1)


def read_groups(table: Any, targets: Targets) -> dict[str, Any]:
    """Returns the columns that make groups, as pyarrow ChunkedArrays (B,). Raises InvalidInput for a null."""
    found: dict[str, Any] = {}
    for column, field in targets.groups.items():
        values = table.column(column)
        if values.null_count:
            raise InvalidInput(f"the column {column!r} of {field} holds nulls; leave such rows out", field=column)
        found[column] = values
    return found


def group_numbers(values: Any) -> Array:
    """Returns a number (B,) int64 for each value of a pyarrow ChunkedArray; equal values have equal numbers."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    whole = values.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], whole.type)
    return np.asarray(whole.dictionary_encode().indices.to_numpy(zero_copy_only=False), np.int64)


def _check_labels(task: TaskConfig, values: Array) -> None:
    column = task.label.column
    match task.loss:
        case "binary_cross_entropy" | "in_batch_softmax":
            wrong, expected = (values != 0) & (values != 1), "0 and 1"
            expected += f"; a comparison such as {{column: {column}, at_least: 4}} makes a label of other numbers"
        case "softmax_cross_entropy":
            assert task.classes is not None
            last = task.classes - 1
            wrong = ~((values >= 0) & (values <= last) & (values == np.floor(values)))
            expected = f"whole numbers from 0 to {last}, as tasks.classes says"
        case "mean_squared_error":
            wrong, expected = ~(np.abs(values) <= _LARGEST_FLOAT32), "finite numbers"
        case _:
            wrong, expected = ~((values >= 0) & (values <= _LARGEST_FLOAT32)), "numbers of 0 or more"
    _refuse(f"the label column {column!r}", values, wrong, expected, column)


def _refuse(about: str, values: Array, wrong: Array, expected: str, field: str) -> None:
    if wrong.any():
        raise InvalidInput(f"{about} holds {values[wrong][0]!s}, expected {expected}", field=field)
