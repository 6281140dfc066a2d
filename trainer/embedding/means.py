"""The mean of a table's rows, kept as the one row of a table of its own, which features may fall back to. D dim."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from storage.features.fallback import MEAN_ID
from trainer.embedding.table import EmbeddingTable, Rows

#: A table of more rows keeps its mean from one version to the next: a delta must not read them all.
ROWS_AT_MOST = 1 << 20
_ROWS_AT_ONCE = 1 << 16


def mean_of(table: EmbeddingTable) -> Rows | None:
    """Returns the mean (D,) of the rows of a table, each counted once; None when it has no row."""
    ids = table.changed_since(0)
    if not len(ids):
        return None
    total = np.zeros(table.dim)
    for start in range(0, len(ids), _ROWS_AT_ONCE):
        total += table.lookup(ids[start : start + _ROWS_AT_ONCE], train=False).sum(axis=0, dtype=np.float64)
    return (total / len(ids)).astype(np.float32)


def row_of_mean(mean: EmbeddingTable) -> Rows | None:
    """Returns the row (D,) of a table of means; None while there is none."""
    rows, has_row = mean.read(np.array([MEAN_ID]))
    return rows[0] if has_row[0] else None


def refresh_means(means: Mapping[str, EmbeddingTable], of: Mapping[str, EmbeddingTable], *, all_rows: bool) -> None:
    """Computes means anew, as changes of the present stamp. means: by name, and `of` the tables they are the mean of.

    all_rows: also those of tables with more than ROWS_AT_MOST rows.
    """
    for name, mean in means.items():
        table = of[name]
        if not all_rows and table.size() > ROWS_AT_MOST:
            continue
        row, before = mean_of(table), row_of_mean(mean)
        if row is None:
            mean.erase(np.array([MEAN_ID]))
        elif before is None or row.tobytes() != before.tobytes():
            ids, ones = np.array([MEAN_ID]), np.ones(1, np.uint32)
            mean.restore(ids, row[None], mean.first_slots()[None], ones, ones * np.uint32(mean.stamp))
