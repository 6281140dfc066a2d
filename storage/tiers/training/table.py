"""A training table with a part of its rows in a file, exported as a whole and in bounded pieces of memory.

Results are ordinary arrays; large ones are mapped files (spool.py). N rows, D dim, S optimizer values.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage._table import RowBudget, TrainingTable
from storage.tiers.training.sorting import sorted_records
from storage.tiers.training.spool import Spool

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
Counts = NDArray[np.uint32]
_LAST_STAMP = 2**32 - 1
_PIECE_BYTES = 16 << 20
_Part = tuple[Ids, Rows, Rows, Counts, Counts, Counts]


class TieredTrainingTable(TrainingTable):
    """A `TrainingTable` whose rows may leave DRAM for a file without a name in `folder`; results are the same.

    name: in messages. budget: of DRAM, shared with other tables, which are all made before one of them is used. The
    rest is as for `TrainingTable`. Raises ConfigError when the budget does not hold the table's filter.
    """

    def __init__(self, name: str, dim: int, *, budget: RowBudget, folder: Path, **options: Any) -> None:
        super().__init__(dim, **options)
        self.name = name
        self.budget = budget
        self._folder = folder
        self.attach(name, budget, str(folder))

    def export_rows(self) -> _Part:
        """Returns ids (n,), rows (n, D), optimizer values (n, S), occurrences, stamps and ticks (n,) of all rows."""
        all_ids, spools = self._spool(np.int64), self._row_spools()
        for ids, *parts in self._all_rows():
            all_ids.append(ids)
            for spool, values in zip(spools, parts, strict=True):
                spool.append(values)
        rows, slots, counts, stamps, ticks = (spool.array() for spool in spools)
        return all_ids.array(), rows, slots, counts, stamps, ticks

    def export_ids(self, ids: Ids) -> tuple[Rows, Rows, Counts, Counts, Counts]:
        """Returns rows (n, D), optimizer values (n, S), occurrences (n,), stamps (n,) and ticks (n,) of ids (n,).

        Raises ValueError for an id without a row.
        """
        spools = self._row_spools()
        for piece in self._pieces(ids):
            for spool, values in zip(spools, super().export_ids(piece), strict=True):
                spool.append(values)
        rows, slots, counts, stamps, ticks = (spool.array() for spool in spools)
        return rows, slots, counts, stamps, ticks

    def export_counts(self) -> tuple[Ids, Counts]:
        """Returns ids (n,) ascending that have no row yet, and their occurrences (n,)."""
        ids, counts = super().export_counts()
        all_ids, all_counts = self._spool(np.int64), self._spool(np.uint32)
        all_ids.append(ids)
        all_counts.append(counts)
        for part, values, _, _ in self._bare(None, None):
            all_ids.append(part[values > 0])
            all_counts.append(values[values > 0])
        return _sorted(all_ids.array(), all_counts.array())

    def changed_since(self, stamp: int) -> Ids:
        """Returns ids (n,) ascending of rows created, stepped or looked up in training after a stamp."""
        return self._with_outside(super().changed_since(stamp), stamp, _LAST_STAMP)

    def expired(self, stamp: int) -> Ids:
        """Returns ids (n,) ascending of rows that changed last at that stamp or before."""
        return self._with_outside(super().expired(stamp), 0, stamp)

    def removed_since(self, stamp: int) -> Ids:
        """Returns ids (n,) ascending that were erased after a stamp and have no row now."""
        return self._removed(stamp)[0]

    def removed(self) -> tuple[Ids, Counts]:
        """Returns ids (n,) ascending that were erased and have no row now, and the stamps (n,) of their erasure."""
        return self._removed(0)

    def waiting_since(self, stamp: int) -> tuple[Ids, Counts]:
        """Returns ids (n,) ascending without a row whose count changed after a stamp, and counts (n,).

        A count of 0 means that the id has a row now, or was erased. The stamp must be one of the last 64.
        """
        all_ids, all_counts = ([part] for part in super().waiting_since(stamp))
        for ids, counts, waiting, _ in self._bare(stamp, None):
            mine = (waiting > stamp) & (self.has_waited(ids) == 0)
            all_ids.append(ids[mine])
            all_counts.append(counts[mine])
        return _sorted(np.concatenate(all_ids), np.concatenate(all_counts))

    def _removed(self, after: int) -> tuple[Ids, Counts]:
        ids, stamps = super().removed()
        all_ids, all_stamps = [ids[stamps > after]], [stamps[stamps > after]]
        for part, _, _, removed in self._bare(None, after):
            all_ids.append(part[removed > after])
            all_stamps.append(removed[removed > after])
        return _sorted(np.concatenate(all_ids), np.concatenate(all_stamps))

    def _bare(
        self, waiting_after: int | None, removed_after: int | None
    ) -> Iterator[tuple[Ids, Counts, Counts, Counts]]:
        """Yields what `outside_bare` gives."""
        page, more = 0, True
        while more:
            ids, counts, waiting, removed, page = self.outside_bare(page, waiting_after, removed_after)
            yield ids, counts, waiting, removed
            more = page > 0

    def _outside(self, after: int, upto: int, *, records: bool) -> Iterator[tuple[Ids, NDArray[np.uint8]]]:
        """Yields what `outside_rows` gives."""
        page, more = 0, True
        while more:
            ids, found, page = self.outside_rows(page, after, upto, records)
            yield ids, found
            more = page > 0

    def _with_outside(self, ids: Ids, after: int, upto: int) -> Ids:
        """Returns `ids` and those of rows outside DRAM that changed last in (after, upto], ascending."""
        spool = self._spool(np.int64)
        spool.append(ids)
        for part, _ in self._outside(after, upto, records=False):
            spool.append(part)
        whole = spool.array()
        whole.sort()
        return whole

    def _all_rows(self) -> Iterator[_Part]:
        """Yields every row, ascending by id, in bounded parts."""
        inside = self.row_ids()
        outside = self._with_outside(np.empty(0, np.int64), 0, _LAST_STAMP)
        parts = self._outside(0, _LAST_STAMP, records=True)
        for ids, records in sorted_records(outside, parts, self.record_bytes, self._piece_rows, self._folder):
            while True:
                part = inside[: self._piece_rows]
                full = len(part) < len(inside) and part[-1] < ids[-1]
                cut = part[-1] if full else ids[-1]
                mine, theirs = part[part <= cut], ids <= cut
                yield self._merged(mine, ids[theirs], records[theirs])
                inside, ids, records = inside[len(mine) :], ids[~theirs], records[~theirs]
                if not full:
                    break
        for piece in self._pieces(inside):
            rows, slots, counts, stamps, ticks = super().export_ids(piece)
            yield piece, rows, slots, counts, stamps, ticks

    def _merged(self, inside: Ids, outside: Ids, records: NDArray[np.uint8]) -> _Part:
        ids = np.concatenate([inside, outside])
        order = np.argsort(ids, kind="stable")
        here, there = super().export_ids(inside), self._unpack(records)
        rows, slots, counts, stamps, ticks = (
            np.concatenate([mine, theirs])[order] for mine, theirs in zip(here, there, strict=True)
        )
        return ids[order], rows, slots, counts, stamps, ticks

    def _unpack(self, records: NDArray[np.uint8]) -> tuple[Rows, Rows, Counts, Counts, Counts]:
        words = [(name, "<u4") for name in ("count", "stamp", "tick")]
        values = [("row", "<f4", (self.dim,)), ("slots", "<f4", (self.slots,))]
        parts = np.ascontiguousarray(records).view(np.dtype([*words, *values])).reshape(-1)
        row, slots, count, stamp, tick = (parts[name] for name in ("row", "slots", "count", "stamp", "tick"))
        return row, slots, count, stamp, tick

    @property
    def _piece_rows(self) -> int:
        return max(1, min(_PIECE_BYTES, max(self.budget.dram_bytes // 8, 4096)) // self.record_bytes)

    def _pieces(self, ids: Ids) -> Iterator[Ids]:
        rows = self._piece_rows
        return (ids[start : start + rows] for start in range(0, len(ids), rows))

    def _row_spools(self) -> list[Spool]:
        values = [self._spool(np.float32, (self.dim,)), self._spool(np.float32, (self.slots,))]
        return [*values, *(self._spool(np.uint32) for _ in range(3))]

    def _spool(self, dtype: type, tail: tuple[int, ...] = ()) -> Spool:
        return Spool(dtype, tail, folder=self._folder)


def _sorted(ids: Ids, values: Counts) -> tuple[Ids, Counts]:
    order = np.argsort(ids, kind="stable")
    return ids[order], values[order]
