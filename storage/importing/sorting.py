"""Sorts the rows of a table by id in bounded memory: parts of the range of ids go to files, and are sorted one by one.

A first pass over the ids alone finds the bounds of parts that fit into memory. A second one writes every row once, into
the file of its part. Rows that come in ascending order are passed on as they come, and those that fit are sorted where
they are. n rows, D values of a row.
"""

from __future__ import annotations

import queue
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

import numpy as np

from storage.checkpoint.finite import first_bad_row
from storage.errors import InvalidInput, ReadError
from storage.importing.source import Block, FileTable
from storage.parallel import map_in_order

_SAMPLE = 1 << 18
_MOST_PARTS = 4096
# In memory lie _PARTS_AT_ONCE parts that are read, sorted or passed on, each with its sorted copy, and shards that are
# written.
_SHARE = 12
_PARTS_AT_ONCE = 3
# Blocks whose rows are divided among parts at once.
_SPILLERS = 2
# A piece of a part's file: number of rows, number of the source file, and which columns it has.
_PIECE = struct.Struct("<qqB")
_COUNTS, _STEPS, _REMOVED = 1, 2, 4


@dataclass(frozen=True)
class SortedRows:
    """Rows of a table in ascending order of ids, each id once."""

    #: (n,) int64.
    ids: np.ndarray
    #: (n, D) float32.
    rows: np.ndarray
    #: (n,) uint32 or None.
    counts: np.ndarray | None
    #: Rows that were left out here: the same as another one of their id, or older.
    repeated: int = 0
    #: (m,) int64 ascending: ids left out here, since their newest row says that they were removed.
    removed: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


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
        if parts > _MOST_PARTS:
            raise InvalidInput(
                f"table {self._table.name!r}: {found.count:,} rows of {self._table.dim} need --memory of at least "
                f"{self._part_bytes * _SHARE * parts // _MOST_PARTS:,} bytes",
                field="memory",
            )
        places = np.linspace(0, len(found.sample) - 1, parts + 1)[1:-1].astype(np.int64)
        bounds = np.unique(found.sample[places])
        self._scratch.mkdir(parents=True, exist_ok=True)
        spill = _Spill(self._table, self._scratch, bounds)
        try:
            for rows in map_in_order(spill.write, self._table.blocks(), _SPILLERS):
                self._progress(rows)
            # Two parts are read and sorted while the one before is written. All use the same memory again, since memory
            # that is new costs more to touch than to copy.
            free: queue.Queue[_Memory] = queue.Queue()
            for _ in range(_PARTS_AT_ONCE):
                free.put(_Memory.of(spill.largest, self._table.dim))
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
            _check_finite(self._table, block)
            self._progress(len(block.ids))
            yield block

    def _row_bytes(self) -> int:
        return 4 * self._table.dim + 32

    def _part_of(self, spill: _Spill, free: queue.Queue[_Memory]) -> Callable[[int], tuple[_Memory, list[SortedRows]]]:
        def read(number: int) -> tuple[_Memory, list[SortedRows]]:
            memory = free.get()
            blocks = list(spill.read(number, memory.rows))
            return memory, list(self._whole(blocks, memory))

        return read

    def _whole(self, blocks: Sequence[Block], memory: _Memory | None = None) -> Iterator[SortedRows]:
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
            self._refuse_different(ids, rows, steps, gone, same, lambda row: files[_block_of(starts, order[row])])
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

    def _refuse_different(
        self,
        ids: np.ndarray,
        rows: np.ndarray,
        steps: np.ndarray | None,
        gone: np.ndarray | None,
        same: np.ndarray,
        file_of: Callable[[int], str],
    ) -> None:
        """Raises InvalidInput for two different rows of an id, of one step."""
        clash = np.flatnonzero(same)
        if steps is not None:
            clash = clash[steps[clash] == steps[clash + 1]]
        differ = (rows[clash] != rows[clash + 1]).any(axis=1)
        if gone is not None:
            # What a removed id had as its row says nothing.
            differ = (differ & ~gone[clash]) | (gone[clash] != gone[clash + 1])
        if differ.any():
            row = int(clash[np.argmax(differ)])
            when = "" if steps is None else f" at the step {steps[row]}"
            raise InvalidInput(
                f"table {self._table.name!r}: the id {ids[row]} has two different rows{when}, one in {file_of(row)} "
                f"and one in {file_of(row + 1)}"
            )


@dataclass(frozen=True)
class _Memory:
    """Memory for the rows of a part, (rows, D) float32 each."""

    rows: np.ndarray
    copy: np.ndarray

    @classmethod
    def of(cls, rows: int, dim: int) -> _Memory:
        """Returns memory for so many rows."""
        return cls(np.empty((rows, dim), np.float32), np.empty((rows, dim), np.float32))

    def sorted(self, order: np.ndarray) -> np.ndarray:
        """Returns the first rows in another order, in `copy`."""
        out: np.ndarray = self.copy[: len(order)]
        # The places are those of argsort; without a mode numpy would go through a buffer of its own.
        np.take(self.rows, order, axis=0, out=out, mode="clip")
        return out


class _Spill:
    """Files of rows, one for each range of ids. bounds: (parts - 1,) ascending, the first ids of all but the first."""

    def __init__(self, table: FileTable, folder: Path, bounds: np.ndarray) -> None:
        self._table = table
        self._bounds = bounds
        self._paths = [folder / f"{table.name}.{part:04d}.rows" for part in range(len(bounds) + 1)]
        self._naming = threading.Lock()
        self._appending = [threading.Lock() for _ in range(64)]
        self._files: dict[str, int] = {}
        self._names: list[str] = []
        self._rows = [0] * len(self._paths)

    @property
    def largest(self) -> int:
        """The rows of the largest part."""
        return max(self._rows)

    def write(self, block: Block) -> int:
        """Appends the rows of a block to their parts, and returns how many there are. Several threads may call it."""
        _check_finite(self._table, block)
        with self._naming:
            if block.file not in self._files:
                self._files[block.file] = len(self._names)
                self._names.append(block.file)
        part = np.searchsorted(self._bounds, block.ids, "right").astype(np.uint16)
        order = np.argsort(part, kind="stable")
        ends = np.cumsum(np.bincount(part, minlength=len(self._paths)))
        start = 0
        for number, end in enumerate(ends.tolist()):
            if end > start:
                self._append(number, block, order[start:end])
            start = end
        return len(block.ids)

    def _append(self, part: int, block: Block, which: np.ndarray) -> None:
        columns = [(0, block.ids), (_COUNTS, block.counts), (_STEPS, block.steps), (_REMOVED, block.removed)]
        given = [(flag, values) for flag, values in columns if values is not None]
        head = _PIECE.pack(len(which), self._files[block.file], sum(flag for flag, _ in given))
        arrays = [*(values[which] for _, values in given), block.rows[which]]
        with self._appending[part % len(self._appending)], self._paths[part].open("ab", buffering=0) as file:
            file.write(head)
            for values in arrays:
                _write_all(file, values)
            self._rows[part] += len(which)

    def read(self, part: int, into: np.ndarray) -> Iterator[Block]:
        """Yields what was written to a part, its rows one behind the other in `into`, and removes its file."""
        path = self._paths[part]
        if not path.exists():
            return
        filled = 0
        with path.open("rb") as file:
            while head := file.read(_PIECE.size):
                count, source, flags = _PIECE.unpack(head)

                def column(flag: int, dtype: type, flags: int = flags, count: int = count) -> np.ndarray | None:
                    return np.fromfile(file, dtype, count) if flags & flag else None

                ids = np.fromfile(file, np.int64, count)
                counts, steps = column(_COUNTS, np.uint32), column(_STEPS, np.int64)
                removed = column(_REMOVED, np.bool_)
                rows = into[filled : filled + count]
                filled += count
                if file.readinto(rows.reshape(-1).view(np.uint8).data) != rows.nbytes:
                    raise ReadError(f"{path}: it is shorter than it was written; is the disk full?")
                yield Block(ids, rows, self._names[source], counts, steps, removed)
        path.unlink()

    def remove(self) -> None:
        """Removes the files that are left."""
        for path in self._paths:
            path.unlink(missing_ok=True)


def _check_finite(table: FileTable, block: Block) -> None:
    if (bad := first_bad_row(block.rows)) is not None:
        raise InvalidInput(
            f"table {table.name!r}: the row of id {block.ids[bad]} in {block.file} holds NaN or infinity"
        )


def _write_all(file: FileIO, values: np.ndarray) -> None:
    data = values.reshape(-1).view(np.uint8).data
    while len(data):
        data = data[file.write(data) :]


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
