"""Files of a table's rows, one for each range of ids, and the memory into which they are read again.

D values of a row.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np

from storage.checkpoint.finite import first_bad_row
from storage.errors import InvalidInput, ReadError
from storage.importing.source import Block, FileTable

# A piece of a part's file: number of rows, number of the source file, and which columns it has.
_PIECE = struct.Struct("<qqB")
_COUNTS, _STEPS, _REMOVED = 1, 2, 4


@dataclass(frozen=True)
class PartMemory:
    """Memory for the rows of a part, (rows, D) float32 each."""

    rows: np.ndarray
    copy: np.ndarray

    @classmethod
    def of(cls, rows: int, dim: int) -> PartMemory:
        """Returns memory for so many rows."""
        return cls(np.empty((rows, dim), np.float32), np.empty((rows, dim), np.float32))

    def sorted(self, order: np.ndarray) -> np.ndarray:
        """Returns the first rows in another order, in `copy`."""
        out: np.ndarray = self.copy[: len(order)]
        # The places are those of argsort; without a mode numpy would go through a buffer of its own.
        np.take(self.rows, order, axis=0, out=out, mode="clip")
        return out


class SpillFiles:
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
        check_finite(self._table, block)
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


def check_finite(table: FileTable, block: Block) -> None:
    """Raises InvalidInput for a row that holds NaN or infinity."""
    if (bad := first_bad_row(block.rows)) is not None:
        raise InvalidInput(
            f"table {table.name!r}: the row of id {block.ids[bad]} in {block.file} holds NaN or infinity"
        )


def _write_all(file: FileIO, values: np.ndarray) -> None:
    data = values.reshape(-1).view(np.uint8).data
    while len(data):
        data = data[file.write(data) :]
