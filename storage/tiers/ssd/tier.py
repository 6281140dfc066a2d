"""The SSD tier holds every row durably, in page files with changes on top of them in RocksDB.

`tables` explains what a table consists of, `keys` the layout of keys, `compaction` how changes become a new page file,
and `reads` how rows are read. Several threads may read beside one that writes; the GIL is free during reads. One
process opens a folder at a time.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

import numpy as np

from storage._pages import FOUND, folder_reads_direct
from storage.errors import InvalidInput, StoreError
from storage.paths import local_path
from storage.threads import require_threads
from storage.tiers.pace import UNHURRIED, Pace
from storage.tiers.ssd.compaction import Compactor
from storage.tiers.ssd.damage import Damage
from storage.tiers.ssd.database import Database
from storage.tiers.ssd.disk_errors import disk_errors
from storage.tiers.ssd.disk_room import DiskRoom
from storage.tiers.ssd.keys import CHANGED, MARKERS, MAX_TABLES, SPILLS, row_keys, row_values
from storage.tiers.ssd.options import SsdOptions
from storage.tiers.ssd.page_folder import PageFolder
from storage.tiers.ssd.reads import RowRead, SsdReader
from storage.tiers.ssd.row_arrays import checked_ids, encoded
from storage.tiers.ssd.sorted_changes import SortedChanges
from storage.tiers.ssd.statistics import SsdStats
from storage.tiers.ssd.table_book import TableBook
from storage.tiers.ssd.tables import TableState

_INGEST_BYTES = 64 << 20
# The bytes of a file of changes that is written beside requests: finishing it holds the GIL for one or two
# milliseconds.
_CHANGES_BYTES = 4 << 20
_PIECE_ROWS = 1024

Progress = Callable[[int], None]


class SsdTier:
    """Holds rows of several tables in one folder. A table is a number; rows are encoded, (n, row_bytes) uint8.

    Raises StoreError for a folder that is open elsewhere and for a disk that fails or is full, and CorruptStoreError
    for files that are not what was written; `damage` keeps the first of these.
    """

    def __init__(
        self,
        path: Path,
        database: Database,
        pages: PageFolder,
        room: DiskRoom,
        limits: SsdOptions,
        damage: Damage,
    ) -> None:
        self.path = path
        self.damage = damage
        self.limits = limits
        self.room = room
        self.pages = pages
        self.database = database
        # Held by the thread that changes rows or markers of tables, so that no generation is frozen meanwhile.
        self.writing = threading.RLock()
        self.book = TableBook(database, pages, self.writing)
        self.reader = SsdReader(path, self.book, database, limits, damage)
        self._spills = count(SPILLS)
        self._sizes: dict[int, int] = {}  # bytes of a row of each table that was written by row
        self._closed = False
        self.compactor = Compactor(self)
        self.compactor.wake()

    @classmethod
    def open(cls, path: Path, limits: SsdOptions | None = None) -> SsdTier:
        """Opens or creates the store in a folder."""
        path = local_path(path, "directory")
        limits = limits or SsdOptions()
        require_threads(f"opening {path}")
        with disk_errors(f"opening {path}"):
            path.mkdir(parents=True, exist_ok=True)
            direct = folder_reads_direct(str(path))
        damage = Damage()
        database = Database(path / "rocksdb", limits, direct=direct, damage=damage)
        try:
            with disk_errors(f"opening {path}"):
                # Removes what a crashed merge left. Without the database's lock it could be another process's merge.
                shutil.rmtree(path / "ingest", ignore_errors=True)
                room = DiskRoom(path, limits.disk_bytes, limits.reserve_bytes)
                return cls(path, database, PageFolder(path / "pages", limits, room), room, limits, damage)
        except BaseException:
            database.close()
            raise

    def find(self, table: int, ids: np.ndarray, row_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Finds the rows of ids (n,) int64, in any order.

        Returns rows (n, row_bytes) uint8, zeros where absent, and found (n,).
        """
        one = RowRead.of(table, ids, row_bytes)
        self.reader.read([one])
        return one.rows, one.states

    def insert_or_assign(self, table: int, ids: np.ndarray, rows: np.ndarray) -> None:
        """Writes rows (n, row_bytes) uint8, or float32; they are durable when the call returns."""
        ids = checked_ids(ids)
        stored = encoded(rows, len(ids))
        self._check_row_bytes(table, stored.shape[1])
        self._write(table, ids, row_values(stored))

    def assign(self, table: int, ids: np.ndarray, rows: np.ndarray) -> int:
        """Writes only the rows whose ids are present; returns how many they are."""
        ids = checked_ids(ids)
        stored = encoded(rows, len(ids))
        self._check_row_bytes(table, stored.shape[1])
        chosen = self.find(table, ids, stored.shape[1])[1] == FOUND
        self._write(table, ids[chosen], row_values(stored[chosen]))
        return int(chosen.sum())

    def erase(self, table: int, ids: np.ndarray) -> None:
        """Removes rows durably; absent ids are ignored."""
        self._write(table, checked_ids(ids), [b""] * len(ids))

    def export_batch(self, table: int, cursor: int, limit: int, row_bytes: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Returns at most `limit` rows in ascending order of ids: the next cursor (-1 at the end), ids, rows.

        The first cursor is 0. Each row comes once if no compaction ends and no row is written between the calls.
        """
        return self.reader.export_batch(table, cursor, limit, row_bytes)

    def ids(self, table: int, limit: int = 1 << 16) -> Iterator[np.ndarray]:
        """Yields the ids of a table, ascending, at most `limit` at a time."""
        cursor = 0
        state = self.book.state(table)
        row_bytes = self._row_bytes(state)
        while cursor >= 0 and row_bytes:
            cursor, ids, _ = self.export_batch(table, cursor, limit, row_bytes)
            if len(ids):
                yield ids

    def is_empty(self, first: int, last: int | None = None) -> bool:
        """Returns whether the tables from `first` to before `last` (None: `first` alone) hold nothing."""
        return all(self.book.state(table).is_empty for table in self.book.numbers(first, last))

    def bulk_load(
        self,
        table: int,
        shards: Iterable[tuple[np.ndarray, np.ndarray]],
        progress: Progress | None = None,
        *,
        pace: Pace = UNHURRIED,
        row_type: str = "fp32",
    ) -> int:
        """Adds rows, to an empty table as one page file. Returns their number when they are on the disk.

        shards: (ids, rows (n, row_bytes) uint8 or float32), each id once; fastest when ids ascend over all shards.
        progress: called with the rows done so far. row_type: how they are encoded; its name is written to the file.
        """
        total = 0

        def done(rows: int) -> None:
            nonlocal total
            total = rows
            if progress is not None:
                progress(rows)

        self._check_open()
        with disk_errors(f"bulk loading {self.path}"):
            if not self.book.state(table).is_empty:
                self._load_as_changes(table, shards, done, pace)
                return total
            file = self.pages.write(table, shards, row_type, pace, done)
            if file is not None:
                self.book.place(table, file)
        return total

    def spill_number(self) -> int:
        """Returns a new table number for rows that need not outlive the process."""
        return next(self._spills)

    def changes(self, pace: Pace, expected_bytes: int = 0) -> SortedChanges:
        """Starts many changes that become visible in one atomic step, built at a pace. Returns a context manager.

        Raises StoreError when expected_bytes do not fit.
        """
        self._check_open()
        with disk_errors(f"writing to {self.path}"):
            if expected_bytes:
                self.room.require(2 * expected_bytes, f"writing to {self.path}")  # a compaction writes them once more
        file_bytes = _INGEST_BYTES if pace is UNHURRIED else max(_CHANGES_BYTES, expected_bytes // 16)
        return SortedChanges(
            self.database,
            self.path / "ingest",
            pace,
            file_bytes,
            self.writing,
            lambda table: self.book.state(table).newer,
            self.compactor.wake,
        )

    def clear(self, first: int, last: int | None = None) -> None:
        """Removes every row of the tables from `first` to before `last` (None: of `first` alone)."""
        with disk_errors(f"clearing a table in {self.path}"):
            for table in self.book.numbers(first, last):
                if not self.book.state(table).is_empty:
                    with self.compactor.stopped():
                        self.book.clear(table)
                self._sizes.pop(table, None)

    def changed(self, table: int) -> Iterator[np.ndarray]:
        """Yields the ids (n,), ascending, some at a time, on the list of those that merges changed in a table."""
        return self.database.changed(table)

    def clear_changed(self, table: int) -> None:
        """Empties the list of the ids that merges changed in a table."""
        self.database.clear_groups(CHANGED + table, CHANGED + table + 1)

    def compact(self, table: int, on_step: Callable[[str], None] | None = None) -> bool:
        """Makes a new page file of a table and its changes in this thread; False if there was nothing to compact.

        on_step: called after each of `compaction.COMPACTION_STEPS`. Raises StoreError.
        """
        return self.compactor.compact(table, on_step or (lambda _: None), hurried=True)

    def settle(self) -> None:
        """Waits until the due background compactions have ended."""
        self.compactor.wait()

    def marker(self, name: str) -> str | None:
        """Returns a durable text about this store, or None."""
        return self.database.marker(name)

    def set_marker(self, name: str, value: str | None) -> None:
        """Writes a marker, or removes it (None). It is on the disk when the call returns."""
        self.set_markers({name: value})

    def set_markers(self, markers: Mapping[str, str | None]) -> None:
        """Writes or removes (None) several markers in one atomic step. They are on the disk when the call returns."""
        self.database.set_markers(markers)

    def size_bytes(self) -> int:
        """Returns the bytes of page files, of the database, and in its write buffers."""
        return self.book.page_bytes() + self.database.size_bytes()

    def stats(self) -> SsdStats:
        """Returns the present counts and sizes."""
        states = [self.book.state(table) for table in self.book.numbers(0, MARKERS)]
        files = [state.file for state in states if state.file is not None]
        reads = self.reader.pages.stats()
        return SsdStats(
            page_bytes=sum(file.file_bytes for file in files),
            database_bytes=self.database.size_bytes(),
            memory_bytes=sum(file.memory_bytes for file in files)
            + sum(generation.ids.memory_bytes for state in states for generation in state.generations),
            changed_rows=sum(len(generation.ids) for state in states for generation in state.generations),
            pages_read=reads["pages"],
            pages_coalesced=reads["coalesced"],
            ids_unresolved=reads["unresolved"],
            ids_filtered=reads["filtered"],
            compactions=self.compactor.compactions,
            compaction_error=self.compactor.error,
            io=self.reader.pages.io,
            direct=any(file.direct for file in files),
        )

    def close(self) -> None:
        """Flushes and releases the folder; later calls raise StoreError.

        A compaction that is under way is begun again when the folder is opened.
        """
        self.compactor.close()
        self._closed = True
        self.reader.close()
        self.book.release()
        self.database.close()

    def _write(self, table: int, ids: np.ndarray, values: Sequence[bytes]) -> None:
        self._check_open()
        if len(ids) == 0:
            return
        with self.writing:
            if table >= MAX_TABLES:
                raise StoreError(f"{self.path}: table {table} cannot be changed, its rows lie in one file")
            state = self.book.state(table)
            state.newer.ids.add(ids)
            self.database.write(zip(row_keys(state.newer.group, ids), values, strict=True))
        self.compactor.wake()

    def _load_as_changes(
        self, table: int, shards: Iterable[tuple[np.ndarray, np.ndarray]], done: Progress, pace: Pace
    ) -> None:
        total = 0
        file_bytes = _INGEST_BYTES if pace is UNHURRIED else _CHANGES_BYTES
        for given, raw in shards:
            rows = encoded(raw, len(given))
            self._check_row_bytes(table, rows.shape[1])
            order = np.argsort(checked_ids(given), kind="stable")
            ids = given[order]
            per_file = max(1, file_bytes // (rows.shape[1] + 12))
            for start in range(0, len(ids), per_file):
                end = min(start + per_file, len(ids))
                with self.changes(pace, (end - start) * (rows.shape[1] + 12)) as changes:
                    for piece in range(start, end, _PIECE_ROWS):
                        inner = slice(piece, min(piece + _PIECE_ROWS, end))
                        changes.write_rows(table, ids[inner], row_values(rows[order[inner]]))
                    changes.ingest()
                total += end - start
                done(total)
        self.compactor.wake()

    def _check_row_bytes(self, table: int, row_bytes: int) -> None:
        """Raises InvalidInput for rows of another size than the table's."""
        known = self._sizes.get(table) or self._row_bytes(self.book.state(table))
        self._sizes[table] = known or row_bytes
        if known and known != row_bytes:
            raise InvalidInput(f"rows: one has {row_bytes} bytes, those of the table have {known}", field="rows")

    def _row_bytes(self, state: TableState) -> int:
        """Returns the bytes of a row of a table, 0 when it has no row."""
        if state.file is not None:
            return state.file.row_bytes
        for generation in state.generations:
            ids = generation.ids.sorted()
            for start in range(0, len(ids), _PIECE_ROWS):
                for value in self.database.get(generation.group, ids[start : start + _PIECE_ROWS]):
                    if value:
                        return len(value)
        return 0

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path}: the store is closed")
