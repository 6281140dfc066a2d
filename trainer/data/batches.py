"""Turns rows of Parquet into model inputs: raw columns, the feature engine, tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from storage.errors import InvalidInput
from storage.features import Column, FeatureBatch, FeatureEngine, FeatureSpec, column_from_arrow
from trainer.data.times import newest_seconds
from trainer.label_config import LabelConfig


@dataclass(frozen=True)
class Batch:
    """A batch of B rows."""

    #: Inputs of the model (see trainer.models.base).
    inputs: dict[str, Tensor]
    #: The labels, (B, 1) float32, 0 or 1.
    labels: Tensor
    rows: int
    #: The raw columns, by input.
    columns: dict[str, Column]
    #: The newest time in the time column, in seconds; None without one.
    seconds: float | None = None


class BatchMaker:
    """Runs the feature engine over rows. Thread-safe.

    time_column: the column with the time of each row, which batches have if it is there.
    """

    def __init__(self, spec: FeatureSpec, label: LabelConfig, time_column: str | None = None) -> None:
        self._spec = spec
        self._engine = FeatureEngine(spec)
        self._label = label
        self._time_column = time_column

    def columns(self, table: Any) -> dict[str, Column]:
        """The raw columns of a pyarrow Table, by input."""
        return {entry.name: column_from_arrow(table.column(entry.source), entry) for entry in self._spec.inputs}

    def inputs(self, table: Any) -> dict[str, Tensor]:
        """Returns the model's inputs for these rows. Raises InvalidInput naming the input at fault."""
        return to_inputs(self._engine.run(self.columns(table), table.num_rows))

    def labels(self, table: Any) -> Tensor:
        """Returns labels (B, 1) float32. Raises InvalidInput for a null or a value other than 0 and 1."""
        values = self._label.read(table)
        wrong = (values != 0) & (values != 1)
        if wrong.any():
            column = self._label.column
            raise InvalidInput(
                f"the label column {column!r} holds {values[wrong][0]!s}, expected 0 and 1; a comparison such as "
                f"{{column: {column}, at_least: 4}} makes a label of other numbers",
                field=column,
            )
        return torch.from_numpy(values.astype(np.float32)).unsqueeze(1)

    def batch(self, table: Any) -> Batch:
        """Features and labels of these rows."""
        columns = self.columns(table)
        inputs = to_inputs(self._engine.run(columns, table.num_rows))
        seconds = None
        if self._time_column is not None and self._time_column in table.column_names:
            seconds = newest_seconds(table.column(self._time_column))
        return Batch(inputs, self.labels(table), table.num_rows, columns, seconds)


def to_inputs(features: FeatureBatch) -> dict[str, Tensor]:
    """Returns the engine's arrays as tensors, without a copy.

    Keys are the name of each dense group, and F.values and F.offsets for each ids feature F, with F.weights beside them
    when its pooling is weighted.
    """
    inputs = {group: torch.from_numpy(values) for group, values in features.dense.items()}
    for name, bags in features.ids.items():
        inputs[f"{name}.values"] = torch.from_numpy(bags.values)
        inputs[f"{name}.offsets"] = torch.from_numpy(bags.offsets)
        if bags.weights is not None:
            inputs[f"{name}.weights"] = torch.from_numpy(bags.weights)
    return inputs
