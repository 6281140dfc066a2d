"""A table of files as a stream that can be published, and what is found out about it on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from storage.checkpoint.row_streams import RowStream
from storage.checkpoint.streams import TableStream
from storage.checkpoint.tables import Shard
from storage.importing import FileTable, RowSort
from storage.initializers import AbsentRows
from storage.rows import Rounding, RowCodec
from storage.specs import TableSpec
from trainer.publishing.embedding_layers import frequency_byte

_HOTTEST = 256
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class ImportedTable:
    """Describes the rows that were read of a table."""

    name: str
    dim: int
    row_type: str
    rows: int
    absent: AbsentRows
    #: Rows of the files that were the same as another one of their id, or older.
    repeated: int
    #: Ids whose newest row says that they were removed.
    removed: int
    #: The ids that were used most, and how often; without counts any ids, and 0.
    hottest: tuple[tuple[int, int], ...]
    largest_error: float
    mean_error: float
    left_out: tuple[str, ...]


class SortedTable:
    """Reads a table of files in ascending order of ids, once for each stream.

    name: that of the published table. hidden: an id whose row is left out. progress: as for RowSort.
    """

    def __init__(
        self,
        table: FileTable,
        row_type: str,
        memory_bytes: int,
        scratch: Path,
        *,
        name: str = "",
        absent: AbsentRows | None = None,
        hidden: int | None = None,
        progress: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self.spec = TableSpec(
            name or table.name, table.dim, row_type, absent=table.absent if absent is None else absent
        )
        self._table = table
        self._hidden = hidden
        self._sort = RowSort(table, memory_bytes, scratch, progress)
        self._codec = RowCodec(row_type, table.dim)
        self._hottest = _Hottest()
        self._rows = 0
        self._largest, self._errors = 0.0, 0.0

    @property
    def has_rows(self) -> bool:
        """Returns whether the files hold any row."""
        return self._table.rows > 0

    def stream(self, *, kept: bool = False) -> TableStream:
        """Returns the rows as they are published.

        kept: a block stays as it is when the next one is read; else it holds until then.
        """
        return TableStream(RowStream(self.spec, partial(self._read, kept)))

    def read(self) -> ImportedTable:
        """Reads all rows, and returns what they are."""
        for _ in self.stream().rows:
            pass
        return self.found()

    def found(self) -> ImportedTable:
        """Returns what the last reading found."""
        return ImportedTable(
            self.spec.name,
            self.spec.dim,
            self.spec.row_type,
            self._rows,
            self.spec.absent,
            self._sort.repeated,
            self._sort.removed,
            self._hottest.pairs(),
            self._largest,
            self._errors / max(1, self._rows * self.spec.dim),
            self._table.left_out,
        )

    def ids(self) -> np.ndarray:
        """Returns some ids that the last reading found, those that were used most first."""
        return np.array([number for number, _ in self._hottest.pairs()], np.int64)

    def removed_ids(self) -> np.ndarray:
        """Returns the ids that the last reading left out, since their newest row says that they were removed."""
        return np.concatenate([np.empty(0, np.int64), *self._sort.removed_ids])

    def _read(self, kept: bool) -> Iterator[Shard]:
        self._rows, self._largest, self._errors = 0, 0.0, 0.0
        self._hottest = _Hottest()
        for block in self._sort.blocks():
            ids, rows, counts = block.ids, block.rows, block.counts
            if self._hidden is not None and not (keep := ids != self._hidden).all():
                if not keep.any():
                    continue
                ids, rows, counts = ids[keep], rows[keep], None if counts is None else counts[keep]
            encoded = self._codec.encode(rows.copy() if kept else rows)
            if self.spec.row_type != "fp32":
                error = Rounding.of(self._codec, rows, encoded)
                self._largest = max(self._largest, error.largest)
                self._errors += error.mean * rows.size
            freq = np.zeros(len(ids), np.uint8) if counts is None else frequency_byte(counts)
            self._hottest.add(ids, counts)
            self._rows += len(ids)
            yield Shard(ids, encoded, freq, self._codec)


class _Hottest:
    """Keeps the ids with the largest counts; of those with equal ones, such as none, some by a hash of the id.

    Which ones does not depend on the blocks in which they come.
    """

    def __init__(self) -> None:
        self._ids = np.empty(0, np.int64)
        self._counts = np.empty(0, np.uint32)
        # Smaller is hotter: the complement of the count, then the hash.
        self._order = np.empty(0, np.uint64)

    def add(self, ids: np.ndarray, counts: np.ndarray | None) -> None:
        """Takes the ids of a block."""
        uses = np.zeros(len(ids), np.uint32) if counts is None else counts
        order = ((~uses).astype(np.uint64) << np.uint64(32)) | ((ids.view(np.uint64) * _ODD) >> np.uint64(32))
        if len(self._order) == _HOTTEST:
            better = order < self._order[-1]
            ids, uses, order = ids[better], uses[better], order[better]
        if len(order) > _HOTTEST:
            best = np.argpartition(order, _HOTTEST)[:_HOTTEST]
            ids, uses, order = ids[best], uses[best], order[best]
        ids, uses = np.concatenate([self._ids, ids]), np.concatenate([self._counts, uses])
        order = np.concatenate([self._order, order])
        kept = np.argsort(order, kind="stable")[:_HOTTEST]
        self._ids, self._counts, self._order = ids[kept], uses[kept], order[kept]

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Returns ids and counts, at most _HOTTEST, the hottest first."""
        return tuple(zip(self._ids.tolist(), self._counts.tolist(), strict=True))
