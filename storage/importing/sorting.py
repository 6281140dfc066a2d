"""Sorts the rows of a table by id in bounded memory: parts of the range of ids go to files, and are sorted one by one.

A first pass over the ids alone finds the bounds of parts that fit into memory. A second one writes every row once, into
the file of its part. Rows that come in ascending order are passed on as they come, those that fit are sorted where they
are, and those of files that the page cache holds are fetched from there. n rows, D values of a row.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.errors import InvalidInput
from storage.importing.by_place import fits_by_place, rows_by_place
from storage.importing.sorted_rows import SortedRows, refuse_different
from storage.importing.source import Block, FileTable
from storage.importing.spilling import PartMemory, SpillFiles, check_finite
from storage.parallel import map_in_order

_SAMPLE = 1 << 18
_MOST_PARTS = 4096
# In memory lie _PARTS_AT_ONCE parts that are read, sorted or passed on, each with its sorted copy, and shards that are
# written.
_SHARE = 12
_PARTS_AT_ONCE = 3
# Blocks whose rows are divided among parts at once.
_SPILLERS = 2


@dataclass(frozen=True)
class _Ids:
    """Describes what the first pass saw."""

    count: int
    ascending: bool
    #: Some of the ids, sorted.
    sample: np.ndarray


class RowSort:
    """Sorts one table. memory_bytes: about how much its rows may take. scratch: a folder for parts that do not fit.

    progress: called with the number of rows that were read, again and again.
    """

    def __init__(
        self, table: FileTable, memory_bytes: int, scratch: Path, progress: Callable[[int], None] = lambda rows: None
    ) -> None:
        self._table = table
        self._memory_bytes = memory_bytes
        self._part_bytes = max(1 << 16, memory_bytes // _SHARE)
        self._scratch = scratch
        self._progress = progress
        #: Rows that were the same as another one of their id, or older.
        self.repeated = 0
        #: Ids whose newest row says that they were removed.
        self.removed = 0
        #: Those ids, in the order of the blocks; an id may be among them as soon as a block beyond it was yielded.
        self.removed_ids: list[np.ndarray] = []

    def blocks(self) -> Iterator[SortedRows]:
        """Yields all rows; the arrays of a block are used again when the next one is asked for.

        Raises InvalidInput for a row that no table can hold, or two different rows of an id.
        """
        self.repeated = self.removed = 0
        self.removed_ids = []
        found = self._look()
        if found.ascending:
            for block in self._checked():
                yield SortedRows(block.ids, block.rows, block.counts)
            return
        parts = -(-found.count * self._row_bytes() // self._part_bytes)
        if parts <= 1:
            yield from self._counted(self._whole(list(self._checked())))
            return
        files = self._table.row_files
        if files is not None and fits_by_place(files, self._memory_bytes):
            yield from self._counted(rows_by_place(self._table, files, self._memory_bytes, self._progress))
            return
        if parts > _MOST_PARTS:
            raise InvalidInput(
                f"table {self._table.name!r}: {found.count:,} rows of {self._table.dim} need --memory of at least "
                f"{self._part_bytes * _SHARE * parts // _MOST_PARTS:,} bytes",
                field="memory",
            )
        places = np.linspace(0, len(found.sample) - 1, parts + 1)[1:-1].astype(np.int64)
        bounds = np.unique(found.sample[places])
        self._scratch.mkdir(parents=True, exist_ok=True)
        spill = SpillFiles(self._table, self._scratch, bounds)
        try:
            for rows in map_in_order(spill.write, self._table.blocks(), _SPILLERS):
                self._progress(rows)
            # Two parts are read and sorted while the one before is written. All use the same memory again, since memory
            # that is new costs more to touch than to copy.
            free: queue.Queue[PartMemory] = queue.Queue()
            for _ in range(_PARTS_AT_ONCE):
                free.put(PartMemory.of(spill.largest, self._table.dim))
            read = self._part_of(spill, free)
            for memory, part in map_in_order(read, range(len(bounds) + 1), _PARTS_AT_ONCE - 1):
                yield from self._counted(part)
                free.put(memory)
        finally:
            spill.remove()

    def _look(self) -> _Ids:
        step = max(1, self._table.rows // _SAMPLE)
        sample: list[np.ndarray] = []
        count, ascending, last = 0, True, None
        for ids in self._table.ids():
            if not len(ids):
                continue
            if ascending:
                ascending = (last is None or int(ids[0]) > last) and bool(np.all(ids[1:] > ids[:-1]))
                last = int(ids[-1])
            sample.append(ids[(-count) % step :: step].copy())
            count += len(ids)
        taken = np.sort(np.concatenate(sample)) if sample else np.empty(0, np.int64)
        return _Ids(count, ascending and not self._table.removes, taken)

    def _counted(self, blocks: Iterable[SortedRows]) -> Iterator[SortedRows]:
        for block in blocks:
            self.repeated += block.repeated
            self.removed += len(block.removed)
            self.removed_ids.append(block.removed)
            yield block

    def _checked(self) -> Iterator[Block]:
        for block in self._table.blocks():
            check_finite(self._table, block)
            self._progress(len(block.ids))
            yield block

    def _row_bytes(self) -> int:
        return 4 * self._table.dim + 32

    def _part_of(
        self, spill: SpillFiles, free: queue.Queue[PartMemory]
    ) -> Callable[[int], tuple[PartMemory, list[SortedRows]]]:
        def read(number: int) -> tuple[PartMemory, list[SortedRows]]:
            memory = free.get()
            blocks = list(spill.read(number, memory.rows))
            return memory, list(self._whole(blocks, memory))

        return read

    def _whole(self, blocks: Sequence[Block], memory: PartMemory | None = None) -> Iterator[SortedRows]:
        """Sorts blocks that lie in memory; with `memory` one behind the other in its rows."""
        if not sum(len(block.ids) for block in blocks):
            return
        ids = np.concatenate([block.ids for block in blocks])
        files = [block.file for block in blocks]
        starts = np.cumsum([0, *(len(block.ids) for block in blocks)])
        steps = _joined(blocks, "steps", np.int64)
        order = np.argsort(ids, kind="stable") if steps is None else np.lexsort((steps, ids))
        ids = ids[order]
        rows = _gathered(blocks, starts, order, self._table.dim) if memory is None else memory.sorted(order)
        counts, removed = _joined(blocks, "counts", np.uint32), _joined(blocks, "removed", np.bool_)
        same = ids[1:] == ids[:-1]
        if same.any():
            steps = None if steps is None else steps[order]
            gone = None if removed is None else removed[order]
            refuse_different(
                self._table.name, ids, rows, same, lambda row: files[_block_of(starts, order[row])], steps, gone
            )
        keep = np.append(~same, True)
        repeated, gone_ids = int(np.count_nonzero(same)), np.empty(0, np.int64)
        if counts is not None:
            counts = counts[order]
            if same.any():
                first = np.flatnonzero(np.insert(~same, 0, True))
                counts = np.maximum.reduceat(counts, first)
                counts = np.repeat(counts, np.diff(np.append(first, len(ids))))
        if removed is not None:
            gone_now = removed[order] & keep
            gone_ids = ids[gone_now]
            keep &= ~gone_now
        if keep.all():
            yield SortedRows(ids, rows, counts)
        else:
            kept = None if counts is None else counts[keep]
            yield SortedRows(ids[keep], rows[keep], kept, repeated, gone_ids)


def _joined(blocks: Sequence[Block], column: str, dtype: type) -> np.ndarray | None:
    """Returns a column of blocks as one; None where none has it, zeros for those that have it not."""
    if all(getattr(block, column) is None for block in blocks):
        return None
    given = (getattr(block, column) for block in blocks)
    return np.concatenate(
        [
            np.zeros(len(block.ids), dtype) if values is None else values
            for block, values in zip(blocks, given, strict=True)
        ]
    )


def _gathered(blocks: Sequence[Block], starts: np.ndarray, order: np.ndarray, dim: int) -> np.ndarray:
    """Returns the rows of blocks in another order, without a copy of all of them in between."""
    out = np.empty((len(order), dim), np.float32)
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    for block, start in zip(blocks, starts[:-1].tolist(), strict=True):
        out[back[start : start + len(block.ids)]] = block.rows
    return out


def _block_of(starts: np.ndarray, place: int) -> int:
    return int(np.searchsorted(starts, place, "right")) - 1
