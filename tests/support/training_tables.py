"""Makes native training tables for tests, and steps their rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from storage._table import BatchLookup, RowGradients, TrainingTable, step_tables


def training_table(dim: int, *, rule: str = "adagrad", scale: float = 0.5, **options: Any) -> TrainingTable:
    """Returns an empty table. scale: half the width of the first values of its rows."""
    given = {"initial_accumulator": 0.1, "seed": 7, **options}
    return TrainingTable(dim, optimizer=rule, rows=("uniform", scale), **given)


def step_rows(
    table: TrainingTable, ids: np.ndarray, grads: np.ndarray, *, rule: str = "adagrad", **numbers: float
) -> int:
    """Steps the rows of ids (n,) with gradients (n, dim), as an optimizer does. Returns the rows stepped."""
    options = {"lr": 0.1, "eps": 1e-8, **numbers}
    return step_tables([table], [[RowGradients(table, ids, grads)]], rule, options, 1)


def pooled(table: TrainingTable, values: np.ndarray, offsets: np.ndarray, mode: int, *, train: bool) -> np.ndarray:
    """Returns bags (B, dim) of values (n,). mode: 0 sum, 1 mean."""
    lookup = BatchLookup([table], [(0, mode, 0)])
    out = np.full((len(offsets) - 1, table.dim), np.nan, np.float32)
    lookup.run([values], [offsets], [None], len(out), out, [], train, 1)
    return out
