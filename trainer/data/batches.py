"""Turns rows into model inputs: raw columns, the feature engine, tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from storage.data.times import unix_ms
from storage.features import Column, FeatureBatch, FeatureEngine, FeatureSpec, column_from_arrow
from storage.features.arrow_rows import ArrowEngine, TableColumns
from trainer.data.cuts import ColumnsOfRows, cut_inputs
from trainer.data.targets import read_groups, read_labels, read_weights
from trainer.data.times import newest_seconds
from trainer.data.whole_batch import WholeBatch
from trainer.devices import Sent
from trainer.task_config import Targets

#: Rows whose features are made in one call.
TOGETHER_ROWS = 8_192


@dataclass(frozen=True)
class Batch:
    """A batch of B rows."""

    #: Inputs of the model (see trainer.models.base).
    inputs: dict[str, Tensor]
    #: The labels of T tasks, (B, T) float32; NaN where a task has none and ignores that.
    labels: Tensor
    rows: int
    #: The raw columns, by input.
    columns: Mapping[str, Column]
    #: The newest time in the time column, in seconds; None without one.
    seconds: float | None = None
    #: How much each row counts, (B, 1) float32; None: all alike.
    weights: Tensor | None = None
    #: The columns that make groups, as pyarrow ChunkedArrays (B,).
    groups: Mapping[str, Any] = field(default_factory=dict)
    #: The times of the rows, (B,) int64, in milliseconds since 1970, -1 where unknown; None without a time column.
    times_ms: np.ndarray[Any, Any] | None = None
    #: Rows of the batch at all ranks; 0 where its place in the data says it.
    whole_rows: int = 0
    #: The times of the rows of the batch at all ranks, as `times_ms`; None where the rows of this rank alone are known.
    whole_times_ms: np.ndarray[Any, Any] | None = None
    #: The batch of all ranks, of which this is a part; None where there is one process.
    whole: WholeBatch | None = None
    #: What is on its way to the device that trains on it; None on a processor.
    sent: Sent | None = None


class BatchMaker:
    """Runs the feature engine over rows. Thread-safe.

    time_column: the column with the time of each row, which batches have if it is there.
    """

    def __init__(self, spec: FeatureSpec, targets: Targets, time_column: str | None = None) -> None:
        self._spec = spec
        self._engine = ArrowEngine(FeatureEngine(spec))
        #: What batches are learned from.
        self.targets = targets
        self._time_column = time_column

    def columns(self, table: Any) -> dict[str, Column]:
        """The raw columns of a pyarrow Table, by input."""
        return {entry.name: column_from_arrow(table.column(entry.source), entry) for entry in self._spec.inputs}

    def inputs(self, table: Any) -> dict[str, Tensor]:
        """Returns the model's inputs for these rows. Raises InvalidInput naming the input at fault."""
        return to_inputs(self._engine.run(table))

    def batch(self, table: Any) -> Batch:
        """Features and labels of these rows. Raises InvalidInput naming the input, or the label, at fault."""
        return self.batches(table, max(1, table.num_rows))[0]

    def batches(self, table: Any, rows: int) -> list[Batch]:
        """Features and labels of each `rows` rows, the same as `batch` makes of these rows alone."""
        made, columns = self._engine.run(table), TableColumns(table, self._spec.inputs)
        labels, weights = read_labels(table, self.targets), read_weights(table, self.targets)
        groups = read_groups(table, self.targets)
        times = self.times_ms(table)
        found: list[Batch] = []
        for number, inputs in enumerate(cut_inputs(made, rows)):
            first, last = number * rows, min(made.batch, (number + 1) * rows)
            found.append(
                Batch(
                    inputs,
                    labels[first:last],
                    last - first,
                    ColumnsOfRows(columns, first, last),
                    self._seconds(table, first, last),
                    None if weights is None else weights[first:last],
                    {name: values.slice(first, last - first) for name, values in groups.items()},
                    None if times is None else times[first:last],
                )
            )
        return found

    def times_ms(self, table: Any) -> np.ndarray[Any, Any] | None:
        """Returns the times of rows, as batches have them."""
        return unix_ms(table.column(self._time_column)) if self._has_times(table) else None

    def _has_times(self, table: Any) -> bool:
        return self._time_column is not None and self._time_column in table.column_names

    def _seconds(self, table: Any, first: int, last: int) -> float | None:
        if not self._has_times(table):
            return None
        return newest_seconds(table.column(self._time_column).slice(first, last - first))


def to_inputs(features: FeatureBatch) -> dict[str, Tensor]:
    """Returns the engine's arrays as tensors, as `cut_inputs` does for one batch: without a copy."""
    return cut_inputs(features, max(1, features.batch))[0]
