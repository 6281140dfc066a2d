"""Reads rows of the SSD tier for many tables in one call: a change of an id comes first, else its page is read.

A reader gets the row of some moment during its call, whatever changes meanwhile, for this reason. It takes the state of
the table (`tables`). An id that is in no generation of the state had not been changed when the reader looked, and the
state's file, which stays open as long as a reader uses it, has its row. An id that is in one is looked up in RocksDB,
the newer generation first: what is found was there during the call. An id that is found in no generation was either
never ingested (the sets of ids are extended first), or its generation was cleared, and the next state was set before
that. So if the state is still the same after the lookup, the file has the row; if it is not, the reader begins again
with the next state.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from storage._pages import ABSENT, FOUND, UNRESOLVED, PageFile, PageReader
from storage.errors import StoreError
from storage.tiers.ssd.damage import Damage
from storage.tiers.ssd.database import Database, check_value
from storage.tiers.ssd.disk_errors import disk_errors
from storage.tiers.ssd.options import SsdOptions
from storage.tiers.ssd.page_folder import check_row_bytes
from storage.tiers.ssd.row_arrays import checked_ids
from storage.tiers.ssd.table_book import TableBook
from storage.tiers.ssd.tables import TableState

_Native = tuple[PageFile | None, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False, slots=True)
class RowRead:
    """Rows to be read from one table on SSD, and their answers, which are written in place."""

    #: The table's number on SSD.
    table: int
    #: (n,) int64, in any order.
    ids: np.ndarray
    #: (n, row_bytes) uint8, zeros where no row is found.
    rows: np.ndarray
    #: (n,) uint8: ABSENT, FOUND or UNRESOLVED.
    states: np.ndarray
    #: (m,) the positions in these arrays that are read and answered, each once; None for all of them.
    where: np.ndarray | None = None

    @classmethod
    def of(cls, table: int, ids: np.ndarray, row_bytes: int) -> RowRead:
        """Makes a read of all `ids` with new arrays for the answers, ABSENT until then. Raises InvalidInput."""
        ids = checked_ids(ids)
        return cls(table, ids, np.zeros((len(ids), row_bytes), np.uint8), np.zeros(len(ids), np.uint8))

    def at(self, where: np.ndarray, table: int | None = None) -> RowRead:
        """Returns the part at some positions, answered into the same arrays, of another table if one is given."""
        return replace(self, where=where, table=self.table if table is None else table)

    def __len__(self) -> int:
        return len(self.ids) if self.where is None else len(self.where)

    def positions(self) -> np.ndarray:
        """Returns the positions (m,) in `ids` that are read."""
        return np.arange(len(self.ids)) if self.where is None else self.where


class SsdReader:
    """Reads rows of many tables. Thread-safe; the GIL is free while pages are read."""

    def __init__(self, path: Path, book: TableBook, database: Database, limits: SsdOptions, damage: Damage) -> None:
        self._path = path
        self._book = book
        self._database = database
        self._damage = damage
        self._closed = False
        with disk_errors(f"reading {path} by {limits.io}"):
            self.pages = PageReader(
                io=limits.io, depth=limits.io_depth, page_queues=limits.io_calls, threads=limits.io_threads
            )

    def read(self, wanted: Sequence[RowRead], timeout_s: float | None = None) -> None:
        """Answers all of `wanted`, with all their pages in flight together.

        A row that does not come within timeout_s (None: no limit) stays UNRESOLVED and zero. Raises StoreError when the
        store is closed or the disk fails, CorruptStoreError for files that are not what was written.
        """
        if self._closed:
            raise StoreError(f"{self._path}: the store is closed")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for one in wanted:
            one.states[slice(None) if one.where is None else one.where] = UNRESOLVED
        todo = list(wanted)
        with self._damage.noted():
            while todo:
                todo = self._read_once(todo, deadline)

    def close(self) -> None:
        """Waits for the reads under way; later ones raise StoreError."""
        self._closed = True
        # Not left to the garbage collector: the tier is part of cycles, and a ring holds memory and a descriptor.
        self.pages.close()

    def export_batch(self, table: int, cursor: int, limit: int, row_bytes: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Does what `SsdTier.export_batch` does."""
        if self._closed:
            raise StoreError(f"{self._path}: the store is closed")
        with self._damage.noted():
            return self._export_batch(table, cursor, limit, row_bytes)

    def _export_batch(self, table: int, cursor: int, limit: int, row_bytes: int) -> tuple[int, np.ndarray, np.ndarray]:
        state = self._book.state(table)
        first = cursor - (1 << 63)
        ids, rows = np.empty(0, np.int64), np.empty((0, row_bytes), np.uint8)
        if state.file is not None:
            check_row_bytes(state.file, row_bytes)
            with disk_errors(f"reading from {self._path}"):
                ids, rows = state.file.scan(first, limit)
        changed = state.changed_ids()
        changed = changed[changed >= first]
        # All ids up to the smallest of these ends have been seen.
        ends = [int(part[limit - 1]) for part in (ids, changed) if len(part) >= limit]
        changed = changed[:limit]
        if ends:
            kept = ids <= min(ends)
            ids, rows, changed = ids[kept], rows[kept], changed[changed <= min(ends)]
        if len(changed):
            kept = ~np.isin(ids, changed)
            one = RowRead.of(table, changed, row_bytes)
            self.read([one])
            hits = one.states == FOUND
            ids = np.concatenate([ids[kept], changed[hits]])
            rows = np.concatenate([rows[kept], one.rows[hits]])
            order = np.argsort(ids, kind="stable")
            ids, rows = ids[order], rows[order]
        if len(ids) > limit:
            ids, rows = ids[:limit], rows[:limit]
            ends = [int(ids[-1])]
        following = min(ends) + 1 if ends else 1 << 63
        return -1 if following == 1 << 63 else following + (1 << 63), ids, rows

    def _read_once(self, todo: Sequence[RowRead], deadline: float | None) -> list[RowRead]:
        """Reads one round; returns what must be read again because the table's state changed meanwhile."""
        native: list[_Native] = []
        apart: list[tuple[RowRead, np.ndarray, np.ndarray]] = []
        again: list[RowRead] = []
        for one in todo:
            state = self._book.state(one.table)
            if state.file is not None:
                check_row_bytes(state.file, one.rows.shape[1])
            left, missed = self._from_changes(state, one, deadline)
            if missed is not None and len(missed) and self._book.state(one.table) is not state:
                again.append(missed)
            elif missed is not None:
                left = one.at(np.concatenate([left.positions(), missed.positions()]))
            if left.where is None:
                native.append((state.file, left.ids, left.rows, left.states))
            elif len(left):
                part = (np.zeros((len(left), one.rows.shape[1]), np.uint8), np.zeros(len(left), np.uint8))
                native.append((state.file, left.ids[left.where], *part))
                apart.append((left, *part))
        if native:
            with disk_errors(f"reading from {self._path}"):
                self.pages.read(native, None if deadline is None else max(0.0, deadline - time.monotonic()))
        for part_of, rows, states in apart:
            part_of.rows[part_of.where], part_of.states[part_of.where] = rows, states
        return again

    def _from_changes(self, state: TableState, one: RowRead, deadline: float | None) -> tuple[RowRead, RowRead | None]:
        """Answers the ids that a generation has a change of.

        Returns the ids that are in no generation, and those that are in one but not in RocksDB; the latter is None when
        no generation has any of the ids.
        """
        ids = one.ids if one.where is None else one.ids[one.where]
        flagged = np.zeros(len(ids), np.bool_)
        for generation in state.generations:
            if len(generation.ids):
                flagged |= generation.ids.contains(ids).view(np.bool_)
        if not flagged.any():
            return one, None
        positions = one.positions()
        unchanged, missed = positions[~flagged], positions[flagged]
        missed = missed[np.argsort(one.ids[missed], kind="stable")]  # neighbours share blocks
        for generation in state.generations:
            if deadline is not None and time.monotonic() >= deadline:
                return one.at(unchanged), one.at(missed[:0])  # they stay unresolved
            has = generation.ids.contains(one.ids[missed]).view(np.bool_)
            asked = missed[has]
            values = self._database.get(generation.group, one.ids[asked])
            hits = np.fromiter((value is not None for value in values), np.bool_, len(values))
            kept = np.fromiter((bool(value) for value in values), np.bool_, len(values))
            full = [value for value in values if value]
            for value in full:
                check_value(self._path, value, one.rows.shape[1])
            one.states[asked[hits]] = ABSENT
            one.states[asked[kept]] = FOUND
            if full:
                one.rows[asked[kept]] = np.frombuffer(b"".join(full), np.uint8).reshape(len(full), one.rows.shape[1])
            missed = np.concatenate([missed[~has], asked[~hits]])
        return one.at(unchanged), one.at(missed)
