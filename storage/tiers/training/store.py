"""Stores the rows of a training that are not in DRAM, in a RocksDB in a folder of its own, for one process's lifetime.

A training is never resumed from it: it continues from its commits, and the next process removes the folder of one that
was killed. So the store can never be ahead of a commit. Writes are synced nevertheless: a row leaves DRAM when it is on
the disk, so that a full or broken disk raises an error while the row is still in DRAM.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rocksdict

from storage.tiers.ssd.disk_errors import disk_errors
from storage.tiers.ssd.options import SsdOptions, ingest_options, rocks_options, synced
from storage.tiers.training.keys import (
    BARE,
    RECORDS,
    REMOVED_AT,
    ROWS_AT,
    WAITING_AT,
    at_keys,
    at_prefix,
    ids_of_records,
    parts_of_at,
    parts_of_used,
    raw_values,
    record_keys,
    space_prefix,
    used_keys,
    used_prefix,
)

# No request waits for the disk while a training compacts.
LIMITS = SsdOptions(block_cache_bytes=32 << 20, write_rate_bytes=1 << 30)
_PREFIX = "rows-"
_LOCK = "lock"
# More bytes of records are ingested as sorted files: a write batch of them would go through log and memtable first.
_INGEST_BYTES = 8 << 20
_SCAN_ENTRIES = 1 << 14
_SCAN_BYTES = 8 << 20


@dataclass(frozen=True)
class Found:
    """The store's records of some ids. Ids are int64."""

    #: (k,) the ids that have a row.
    row_ids: np.ndarray
    #: (k, record_bytes) uint8, the records of `row_ids`.
    records: np.ndarray
    #: (b,) the ids that have a count or an erasure, but no row.
    bare_ids: np.ndarray
    #: (b,) uint32 for `bare_ids`, like `waiting` and `removed`, as `TrainingTable.bring_bare` takes them.
    counts: np.ndarray
    waiting: np.ndarray
    removed: np.ndarray
    #: The ids that the store has nothing of.
    absent: np.ndarray

    def among(self, ids: np.ndarray) -> Found:
        """Returns the part of it that is about `ids`."""
        row, bare = np.isin(self.row_ids, ids), np.isin(self.bare_ids, ids)
        return Found(
            self.row_ids[row],
            self.records[row],
            self.bare_ids[bare],
            self.counts[bare],
            self.waiting[bare],
            self.removed[bare],
            self.absent[np.isin(self.absent, ids)],
        )


@dataclass(frozen=True)
class Entries:
    """The entries that one write changes."""

    keys: list[bytes]
    #: One value for each key; None removes the key.
    values: list[bytes | None]


class TrainingStore:
    """Stores rows, counts and erasures of several tables by number. The first write creates it on the disk.

    parent: the folder that holds the stores of a run's processes. Several threads may read beside one that writes.
    Raises StoreError when the disk fails.
    """

    def __init__(self, parent: Path, limits: SsdOptions = LIMITS) -> None:
        self._parent = parent
        self._limits = limits
        self._folder: Path | None = None
        self._db: Any = None
        self._options: Any = None
        self._making = threading.Lock()
        self._finalizer: weakref.finalize[[Path, int], TrainingStore] | None = None

    @property
    def is_empty(self) -> bool:
        """True when nothing was ever written."""
        return self._db is None

    def read(self, table: int, ids: np.ndarray, record_bytes: int) -> Found:
        """Reads what is known of ids (n,) int64, each once."""
        if self._db is None or len(ids) == 0:
            return _nothing_of(ids, record_bytes)
        ids = np.sort(ids)
        with disk_errors(f"reading {len(ids)} rows from {self._folder}"):
            values = self._db.get(record_keys(table, ids))
        sizes = np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))
        rows, bare = sizes == record_bytes, sizes == BARE.itemsize
        records = np.frombuffer(b"".join(value for value, row in zip(values, rows, strict=True) if row), np.uint8)
        parts = np.frombuffer(b"".join(value for value, here in zip(values, bare, strict=True) if here), BARE)
        return Found(
            ids[rows],
            records.reshape(-1, record_bytes),
            ids[bare],
            np.ascontiguousarray(parts["count"], np.uint32),
            np.ascontiguousarray(parts["waiting"], np.uint32),
            np.ascontiguousarray(parts["removed"], np.uint32),
            ids[sizes == 0],
        )

    def write_rows(
        self,
        table: int,
        ids: np.ndarray,
        records: np.ndarray,
        stamps: np.ndarray,
        written: np.ndarray,
        parts: np.ndarray | None = None,
        ticks: np.ndarray | None = None,
    ) -> None:
        """Writes rows, ids (n,) ascending and each once. They are on the disk when the call returns.

        written: (n,) uint32, the stamps of the records that they replace, 0 for none. parts, ticks: (n,) by which
        `used_at` finds them; None when it is not called for this table.
        """
        moved = stamps != written
        gone = moved & (written > 0)
        places = np.concatenate([stamps[moved], written[gone]])
        owners = np.concatenate([ids[moved], ids[gone]])
        order = np.lexsort((owners, places))
        left = np.concatenate([np.zeros(moved.sum(), np.bool_), np.ones(gone.sum(), np.bool_)])[order]
        keys = record_keys(table, ids) + at_keys(ROWS_AT + table, places[order], owners[order])
        values: list[bytes | None] = [*raw_values(records), *(None if off else b"" for off in left)]
        if parts is not None and ticks is not None:
            keys += used_keys(table, parts, ticks, ids)
            values += [b""] * len(ids)
        self._write(Entries(keys, values), records.nbytes)

    def write_bare(
        self, table: int, ids: np.ndarray, counts: np.ndarray, waiting: np.ndarray, removed: np.ndarray
    ) -> None:
        """Writes what ids without a row have. An id with neither count nor erasure only lost its count at `waiting`."""
        known = (counts > 0) | (removed > 0)
        parts = np.zeros(int(known.sum()), BARE)
        parts["count"], parts["waiting"], parts["removed"] = counts[known], waiting[known], removed[known]
        waits, gone = waiting > 0, removed > 0
        keys = record_keys(table, ids[known])
        keys += at_keys(WAITING_AT + table, waiting[waits], ids[waits])
        keys += at_keys(REMOVED_AT + table, removed[gone], ids[gone])
        values: list[bytes | None] = [*raw_values(parts), *raw_values(counts[waits].astype("<u4"))]
        values += [b""] * int(gone.sum())
        self._write(Entries(keys, values))

    def erase(self, table: int, ids: np.ndarray, written: np.ndarray) -> None:
        """Removes records. written: (n,) uint32, the stamps of those that are rows, 0 for the others."""
        if self._db is None:
            return
        rows = written > 0
        keys = record_keys(table, ids) + at_keys(ROWS_AT + table, written[rows], ids[rows])
        self._write(Entries(keys, [None] * len(keys)))

    def records(self, table: int) -> Iterator[tuple[np.ndarray, list[bytes]]]:
        """Yields all records of a table by ascending id, some at a time: ids (n,), their bytes."""
        space = RECORDS + table
        for keys, values in self._scan(space_prefix(space), space_prefix(space + 1)):
            yield ids_of_records(keys), values

    def rows_at(self, table: int, first: int, last: int) -> Iterator[np.ndarray]:
        """Yields ids (n,) of rows that changed last at the stamps `first` to `last`, some at a time, in no order."""
        for _, ids, _ in self._at(ROWS_AT + table, first, last):
            yield ids

    def removed_at(self, table: int, first: int, last: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields stamps and ids of erasures; one is valid only if its record says the same."""
        for stamps, ids, _ in self._at(REMOVED_AT + table, first, last):
            yield stamps, ids

    def waiting_at(self, table: int, first: int, last: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields ids and what their counts became, by ascending stamp; the last count of an id is valid."""
        for _, ids, values in self._at(WAITING_AT + table, first, last):
            yield ids, np.frombuffer(b"".join(values), "<u4").astype(np.uint32)

    def used_at(self, table: int, part: int, first: int, last: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields ticks and ids of rows of a part that were used last at the ticks `first` to `last`.

        An entry is valid only if its record has the same tick.
        """
        if first > last:
            return
        for keys, _ in self._scan(used_prefix(table, part, first), used_prefix(table, part, last) + b"\xff" * 9):
            yield parts_of_used(keys)

    def forget_used(self, table: int, part: int, ticks: np.ndarray, ids: np.ndarray) -> None:
        """Removes what `used_at` yielded."""
        keys = used_keys(table, np.full(len(ids), part), ticks, ids)
        self._write(Entries(keys, [None] * len(keys)))

    def forget(self, kind: int, table: int, last: int) -> None:
        """Removes the entries of WAITING_AT or REMOVED_AT up to a stamp."""
        if self._db is not None and last > 0:
            with disk_errors(f"writing to {self._folder}"):
                self._db.delete_range(at_prefix(kind + table, 0), at_prefix(kind + table, last + 1))

    def size_bytes(self) -> int:
        """Returns the bytes on the disk and in write buffers."""
        if self._db is None:
            return 0
        with disk_errors(f"measuring {self._folder}"):
            return sum(
                int(self._db.property_int_value(name) or 0)
                for name in ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
            )

    @property
    def scratch(self) -> Path:
        """A folder for files of this process, which is removed with the store."""
        self._open()
        assert self._folder is not None
        return self._folder

    def close(self) -> None:
        """Removes the store."""
        with self._making:
            database, self._db, self._options = self._db, None, None
            if database is not None:
                database.close()
            if self._finalizer is not None:
                self._finalizer()

    def _write(self, entries: Entries, record_bytes: int = 0) -> None:
        database = self._open()
        with disk_errors(f"writing {len(entries.keys)} entries to {self._folder}"):
            if record_bytes >= _INGEST_BYTES:
                self._ingest(database, entries)
                return
            batch = rocksdict.WriteBatch(raw_mode=True)
            for key, value in zip(entries.keys, entries.values, strict=True):
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
            if len(batch):
                database.write(batch, synced())

    def _ingest(self, database: Any, entries: Entries) -> None:
        """Ingests entries, whose keys ascend, as a sorted file."""
        assert self._folder is not None
        path = self._folder / f"{secrets.token_hex(8)}.sst"
        try:
            writer = rocksdict.SstFileWriter(options=self._options)
            writer.open(str(path))
            for key, value in zip(entries.keys, entries.values, strict=True):
                if value is None:
                    del writer[key]
                else:
                    writer[key] = value
            writer.finish()
            database.ingest_external_file([str(path)], ingest_options())
        finally:
            path.unlink(missing_ok=True)

    def _at(self, space: int, first: int, last: int) -> Iterator[tuple[np.ndarray, np.ndarray, list[bytes]]]:
        if first > last:
            return
        for keys, values in self._scan(at_prefix(space, first), at_prefix(space, last) + b"\xff" * 9):
            yield *parts_of_at(keys), values

    def _scan(self, start: bytes, end: bytes) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yields the entries that exist when the scan begins; it does not see later writes."""
        if self._db is None:
            return
        with disk_errors(f"reading from {self._folder}"):
            iterator = self._db.iter()
            iterator.seek(start)
        more = True
        while more:
            keys: list[bytes] = []
            values: list[bytes] = []
            with disk_errors(f"reading from {self._folder}"):
                left = _SCAN_BYTES
                while (
                    left > 0
                    and len(keys) < _SCAN_ENTRIES
                    and (more := iterator.valid() and (key := iterator.key()) < end)
                ):
                    keys.append(key)
                    values.append(iterator.value())
                    left -= len(values[-1])
                    iterator.next()
                iterator.status()
            if keys:
                yield keys, values

    def _open(self) -> Any:
        with self._making:
            if self._db is not None:
                return self._db
            with disk_errors(f"making a store for rows under {self._parent}"):
                folder, lock = _own_folder(self._parent)
                self._finalizer = weakref.finalize(self, _remove, folder, lock)
                options = rocks_options(self._limits)
                self._folder, self._options = folder, options
                self._db = rocksdict.Rdict(str(folder / "rocksdb"), options)
            return self._db


def _nothing_of(ids: np.ndarray, record_bytes: int) -> Found:
    none, words = np.empty(0, np.int64), np.empty(0, np.uint32)
    return Found(none, np.empty((0, record_bytes), np.uint8), none, words, words, words, ids)


def _own_folder(parent: Path) -> tuple[Path, int]:
    """Makes a new folder and holds its lock; removes folders whose lock is not held."""
    parent.mkdir(parents=True, exist_ok=True)
    gate = os.open(parent / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)
        for entry in parent.glob(f"{_PREFIX}*"):
            held = _try_lock(entry)
            if held is not None:
                os.close(held)
                shutil.rmtree(entry, ignore_errors=True)
        folder = parent / f"{_PREFIX}{secrets.token_hex(8)}"
        folder.mkdir()
        lock = _try_lock(folder)
        assert lock is not None
        return folder, lock
    finally:
        os.close(gate)


def _try_lock(folder: Path) -> int | None:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return None  # another process is removing it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
