"""Makes embedding tables as training leaves them: the ids 0 to n - 1, each with a random row and nine uses."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.embedding import EmbeddingTable


def trained_tables(
    count: int, rows: int, dim: int, rng: np.random.Generator, *, scale: float, seed: int
) -> tuple[list[EmbeddingTable], list[np.ndarray[Any, Any]]]:
    """Returns tables t0, t1, ... and the rows (rows, dim) float32 of each. scale: standard deviation of a value."""
    tables = [EmbeddingTable(f"t{index}", dim, optimizer="sgd", seed=seed + index) for index in range(count)]
    ids = np.arange(rows, dtype=np.int64)
    nothing = np.empty((rows, 0), np.float32)
    every = []
    for table in tables:
        values = (rng.standard_normal((rows, dim)) * scale).astype(np.float32)
        table.restore(ids, values, nothing, np.full(rows, 9, np.uint32), np.full(rows, table.stamp, np.uint32))
        every.append(values)
    return tables, every
