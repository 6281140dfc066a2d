"""The order in which rows are seen: whole epochs, shuffled in windows, cut into batches.

The order depends on the seed, the epoch and the files alone, so that a run resumed in the middle sees the same batches.
Of several processes that train together, each reads a share of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from storage.data import DataRows, RowBlock
from trainer.data.prefetch import mapped
from trainer.data.shares import Share
from trainer.data.splits import Split

#: Rows of a column that are taken at once where it is too large to be taken as a whole.
_PART_ROWS = 8_192


@dataclass(frozen=True)
class Window:
    """Rows of an epoch that are shuffled together, or a block of them where none are."""

    #: The number in the epoch.
    number: int
    #: Rows of the epoch before it.
    before: int
    blocks: tuple[RowBlock, ...]

    @property
    def rows(self) -> int:
        """The rows of all its blocks."""
        return sum(block.rows for block in self.blocks)


class RowStream:
    """Batches of rows, epoch by epoch.

    shuffle_rows: blocks are gathered in random order until they hold this many rows, and the rows of such a window
    are shuffled together; None keeps the order of the files. A window that is read ahead is in memory beside the one
    that is cut. The last batch of an epoch may be smaller. share: the rows of this process, where several train
    together; all of them give the same rows, options and seed, and have the same number of batches, of the same sizes.
    split: the rows of each batch that this process takes, of batches that several make together; it reads the others
    too, because a window is shuffled as a whole (`SharedReading` has others read them). A last batch with fewer rows
    than processes has none for some of these, which take it all the same.
    """

    def __init__(
        self,
        rows: DataRows,
        batch_size: int,
        *,
        shuffle_rows: int | None = None,
        seed: int = 0,
        share: Share | None = None,
        split: Split | None = None,
    ) -> None:
        self._rows = rows
        self._batch_size = batch_size
        self._shuffle_rows = shuffle_rows
        self._seed = seed
        self._share = share or Share()
        self._split = split or Split()

    @property
    def batches(self) -> int:
        """Number of batches in one epoch."""
        return -(-self._share.rows(self._rows.rows) // self._batch_size)

    @property
    def batch_size(self) -> int:
        """Rows of a batch, those of all processes that make it together."""
        return self._batch_size

    @property
    def rows(self) -> DataRows:
        """The rows."""
        return self._rows

    @property
    def own_batch_size(self) -> int:
        """Rows of a batch that this process takes."""
        first, last = self._split.bounds(self._batch_size)
        return last - first

    def rows_of(self, batch: int) -> int:
        """Returns the rows of a batch, those of all processes that make it together."""
        return min(self._batch_size, self._share.rows(self._rows.rows) - batch * self._batch_size)

    def ends_without_rows(self, skip_batches: int) -> bool:
        """Returns whether the last batch of an epoch is one without a row for this process, and is not left out."""
        first, last = self._split.bounds(self.rows_of(self.batches - 1))
        return first == last and skip_batches < self.batches

    def epoch(self, epoch: int, *, skip_batches: int = 0) -> Iterator[Any]:
        """Yields pyarrow Tables of own_batch_size rows. skip_batches: how many batches are left out, and mostly not
        read.
        """
        return self.cut(self.windows(epoch, skip_batches=skip_batches))

    def windows(self, epoch: int, *, skip_batches: int = 0) -> Iterator[Any]:
        """Reads the windows of an epoch, without the rows of the first batches, as pyarrow Tables in their order: a
        stage of its own before `cut`. A table without rows is a last batch without any.
        """
        skipped = skip_batches * self._batch_size
        for window, table in self._tables(epoch, skipped):
            skip = max(0, skipped - window.before)
            order = self.order(epoch, window)[skip:]
            if self._split.ranks > 1:
                order = order[self.owners(window.before + skip, window.before + window.rows) == self._split.rank]
                if len(order):
                    yield taken(table, order)
            else:
                yield table.slice(skip) if self._shuffle_rows is None else taken(table, order)
        if self.ends_without_rows(skip_batches):
            yield self._rows.schema.empty_table()

    def planned(self, epoch: int, skipped: int = 0) -> Iterator[Window]:
        """Yields the windows of an epoch that end after `skipped` rows."""
        before = 0
        for number, blocks in enumerate(self._windows(epoch)):
            window = Window(number, before, tuple(blocks))
            before += window.rows
            if before > skipped:
                yield window

    def order(self, epoch: int, window: Window) -> np.ndarray[Any, Any]:
        """Returns the rows of a window, (N,), in the order in which they are seen."""
        if self._shuffle_rows is None:
            return np.arange(window.rows)
        own = [] if self._share.world_size == 1 else [self._share.rank]
        return np.random.default_rng([self._seed, epoch, 1 + window.number, *own]).permutation(window.rows)

    def owners(self, first: int, last: int) -> np.ndarray[Any, Any]:
        """Returns which process takes each of the rows `first` to `last` - 1 of an epoch."""
        return self._split.owners(first, last, self._batch_size, self._share.rows(self._rows.rows))

    def cut(self, windows: Iterable[Any], together: int = 1) -> Iterator[Any]:
        """Yields pyarrow Tables of own_batch_size rows: those of the windows, one after the other.

        together: how many batches a table holds.
        """
        rows = self.own_batch_size * together
        left: Any = None
        for window in windows:
            if window.num_rows == 0:
                yield from [window] if left is None else [left, window]
                return
            start = 0
            if left is not None:
                start = rows - left.num_rows
                left = pa.concat_tables([left, window.slice(0, start)])
                if left.num_rows < rows:
                    continue
                yield left
                left = None
            while start + rows <= window.num_rows:
                yield window.slice(start, rows)
                start += rows
            if start < window.num_rows:
                left = window.slice(start)
        if left is not None:
            yield left

    def place_of(self, epoch: int, batch: int, row: int) -> str:
        """Returns the file, and the row or line in it, of a row of this process, for people.

        batch, row: a batch of the epoch, and the row in it, or behind it in the batches that follow.
        """
        further, row = divmod(row, self.own_batch_size)
        batch += further
        at = batch * self._batch_size + self._split.bounds(self.rows_of(batch))[0] + row
        for window in self.planned(epoch):
            if at >= window.before + window.rows:
                continue
            at = int(self.order(epoch, window)[at - window.before])
            for block in window.blocks:
                if at < block.rows:
                    return block.place_of(at)
                at -= block.rows
        return "the end of the data"

    def _tables(self, epoch: int, skip: int) -> Iterator[tuple[Window, Any]]:
        """Yields the windows that end after `skip` rows, and their rows."""

        def read(entry: tuple[Window, RowBlock]) -> tuple[Window, Any]:
            window, block = entry
            return window, block.read(self._rows.schema)

        blocks = ((window, block) for window in self.planned(epoch, skip) for block in window.blocks)
        parts = mapped(read, blocks, self._rows.options.read_threads)
        for _, tables in groupby(parts, key=lambda part: part[0].number):
            found = list(tables)
            yield found[0][0], pa.concat_tables([table for _, table in found])

    def _windows(self, epoch: int) -> Iterator[list[RowBlock]]:
        blocks = list(self._rows.blocks)
        if self._shuffle_rows is None:
            yield from ([block] for block in self._share.of(blocks))
            return
        random = np.random.default_rng([self._seed, epoch, 0])
        drawn = [blocks[index] for index in random.permutation(len(blocks)).tolist()]
        window: list[RowBlock] = []
        rows = 0
        # From a drawn row on, so that each process has other rows in each epoch, also of a single block.
        for block in self._share.of(drawn, int(random.integers(max(1, self._rows.rows)))):
            window.append(block)
            rows += block.rows
            if rows >= self._shuffle_rows:
                yield window
                window, rows = [], 0
        if window:
            yield window


def taken(table: Any, order: np.ndarray[Any, Any]) -> Any:
    """Returns rows of a table. order: those to return, (N,).

    Each column is taken as a whole, because rows from everywhere are found fastest while it stays in the cache.
    """
    chosen = pa.array(order)
    taken = []
    for column in table.columns:
        whole = column.combine_chunks()
        if isinstance(whole, pa.ChunkedArray):  # over 2 GiB of text; what is taken at once has to be less
            parts = [whole.take(chosen.slice(start, _PART_ROWS)) for start in range(0, len(order), _PART_ROWS)]
            taken.append(pa.chunked_array([chunk for part in parts for chunk in part.chunks], column.type))
        else:
            taken.append(whole.take(chosen))
    return pa.table(taken, schema=table.schema)
