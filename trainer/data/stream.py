"""The order in which rows are seen: whole epochs, shuffled in windows, cut into batches.

The order depends on the seed, the epoch and the files alone, so that a run resumed in the middle sees the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from storage.data import DataRows, RowGroup


class RowStream:
    """Batches of rows, epoch by epoch.

    shuffle_rows: row groups are gathered in random order until they hold this many rows, and the rows of such a window
    are shuffled together; None keeps the order of the files. At most one window (or one row group, if that is larger)
    is in memory. The last batch of an epoch may be smaller.
    """

    def __init__(self, rows: DataRows, batch_size: int, *, shuffle_rows: int | None = None, seed: int = 0) -> None:
        self._rows = rows
        self._batch_size = batch_size
        self._shuffle_rows = shuffle_rows
        self._seed = seed

    @property
    def batches(self) -> int:
        """Number of batches in one epoch."""
        return -(-self._rows.rows // self._batch_size)

    def epoch(self, epoch: int, *, skip_batches: int = 0) -> Iterator[Any]:
        """Yields pyarrow Tables of batch_size rows. skip_batches: number of batches that are left out, and mostly not
        read.
        """
        skip = skip_batches * self._batch_size
        left: Any = None
        for number, window in enumerate(self._windows(epoch)):
            rows = sum(group.rows for group in window)
            if skip >= rows:
                skip -= rows
                continue
            table = pa.concat_tables([group.read(self._rows.schema) for group in window])
            if self._shuffle_rows is not None:
                order = np.random.default_rng([self._seed, epoch, 1 + number]).permutation(rows)
                table = table.combine_chunks().take(pa.array(order[skip:]))
            else:
                table = table.slice(skip)
            skip = 0
            if left is not None and left.num_rows:
                table = pa.concat_tables([left, table])
            whole = table.num_rows - table.num_rows % self._batch_size
            for start in range(0, whole, self._batch_size):
                yield table.slice(start, self._batch_size)
            left = table.slice(whole)
        if left is not None and left.num_rows:
            yield left

    def _windows(self, epoch: int) -> Iterator[list[RowGroup]]:
        groups = list(self._rows.groups)
        if self._shuffle_rows is None:
            yield from ([group] for group in groups)
            return
        order = np.random.default_rng([self._seed, epoch, 0]).permutation(len(groups))
        window: list[RowGroup] = []
        rows = 0
        for index in order.tolist():
            window.append(groups[index])
            rows += groups[index].rows
            if rows >= self._shuffle_rows:
                yield window
                window, rows = [], 0
        if window:
            yield window
