"""The SSD tier: RocksDB, the durable truth of every row.

How keys are laid out stands in `ssd_keys`. Several threads may read and write at once; the GIL is released during
reads. One process a folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import rocksdict

from storage.errors import EmberlineError, StoreError
from storage.tiers.pace import UNHURRIED, Pace
from storage.tiers.sorted_changes import SortedChanges
from storage.tiers.ssd_keys import KEY, SPILLS, ids_of, marker_key, row_keys, row_values, table_prefix
from storage.tiers.ssd_options import SsdOptions, rocks_options, synced

_INGEST_BYTES = 64 << 20
# Of one file of changes that are made beside requests: finishing it keeps the GIL for one or two milliseconds.
_CHANGES_BYTES = 4 << 20
_PIECE_ROWS = 1024

Progress = Callable[[int], None]


class SsdTier:
    """Rows of several tables in one folder. A table is a number; its row size is given with every call.

    Errors: StoreError for a folder that is open elsewhere, for a disk that fails and for bytes that are corrupt.
    """

    def __init__(self, path: Path, database: Any, options: Any, limits: SsdOptions) -> None:
        self.path = path
        self._db = database
        self._options = options
        self._limits = limits
        self._spills = count(SPILLS)

    @classmethod
    def open(cls, path: Path, limits: SsdOptions | None = None) -> SsdTier:
        """Opens or creates the store in a folder."""
        limits = limits or SsdOptions()
        options = rocks_options(limits)
        with disk_errors(f"opening {path}"):
            path.mkdir(parents=True, exist_ok=True)
            database = rocksdict.Rdict(str(path / "rocksdb"), options)
            # What a crashed bulk load left. Only now: before the lock it could be another process's load.
            shutil.rmtree(path / "ingest", ignore_errors=True)
        return cls(path, database, options, limits)

    def find(self, table: int, ids: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
        """Reads rows. ids: (n,) int64, any order. Returns rows (n, dim) float32, zeros where absent, and found (n,)."""
        rows = np.zeros((len(ids), dim), np.float32)
        found = np.zeros(len(ids), np.uint8)
        if len(ids) == 0:
            return rows, found
        order = np.argsort(ids, kind="stable")
        with disk_errors(f"reading {len(ids)} rows from {self.path}"):
            values = self._db.get(row_keys(table, ids[order]))
        hits = np.fromiter((value is not None for value in values), np.bool_, len(values))
        present = [value for value in values if value is not None]
        if present:
            self._check_sizes(present, dim)
            where = order[hits]
            rows[where] = np.frombuffer(b"".join(present), np.dtype("<f4")).reshape(len(present), dim)
            found[where] = 1
        return rows, found

    def insert_or_assign(self, table: int, ids: np.ndarray, rows: np.ndarray) -> None:
        """Writes rows (n, dim) float32, durable when the call returns."""
        self._write(zip(row_keys(table, ids), row_values(rows), strict=True))

    def assign(self, table: int, ids: np.ndarray, rows: np.ndarray) -> int:
        """Writes only the rows whose ids are present; returns how many."""
        with disk_errors(f"reading from {self.path}"):
            present = [value is not None for value in self._db.get(row_keys(table, ids))] if len(ids) else []
        chosen = np.fromiter(present, np.bool_, len(present))
        self.insert_or_assign(table, ids[chosen], rows[chosen])
        return int(chosen.sum())

    def erase(self, table: int, ids: np.ndarray) -> None:
        """Removes rows; absent ids are ignored. Durable when the call returns."""
        self._write((key, None) for key in row_keys(table, ids))

    def export_batch(self, table: int, cursor: int, limit: int, dim: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Rows in ascending order of ids. cursor: 0 starts; returns the next cursor, -1 at the end, ids, rows."""
        following, keys, values = self._scan(table, cursor, limit)
        if not keys:
            return -1, np.empty(0, np.int64), np.empty((0, dim), np.float32)
        self._check_sizes(values, dim)
        ids = ids_of(keys)
        rows = np.frombuffer(b"".join(values), np.dtype("<f4")).reshape(len(values), dim).astype(np.float32)
        return following, ids, rows

    def ids(self, table: int, limit: int = 1 << 16) -> Iterator[np.ndarray]:
        """The ids of a table, ascending, at most `limit` at a time."""
        cursor = 0
        while cursor >= 0:
            cursor, keys, _ = self._scan(table, cursor, limit, with_values=False)
            if keys:
                yield ids_of(keys)

    def is_empty(self, first: int, last: int | None = None) -> bool:
        """Whether the tables from `first` to before `last` (None: `first` alone) have no row."""
        with disk_errors(f"reading from {self.path}"):
            iterator = self._db.iter()
            iterator.seek(table_prefix(first))
            empty = not (iterator.valid() and iterator.key() < table_prefix(first + 1 if last is None else last))
            iterator.status()
        return empty

    def bulk_load(
        self,
        table: int,
        shards: Iterable[tuple[np.ndarray, np.ndarray]],
        progress: Progress | None = None,
        *,
        pace: Pace = UNHURRIED,
    ) -> int:
        """Adds sorted rows by ingesting sorted files, a bounded number of bytes at a time; returns the number of rows.

        shards: (ids ascending and unique over all shards, rows float32). progress: called with rows done so far.
        """
        done = 0
        file_bytes = _INGEST_BYTES if pace is UNHURRIED else _CHANGES_BYTES
        with disk_errors(f"bulk loading {self.path}"):
            for ids, rows in shards:
                per_file = max(1, file_bytes // (rows.shape[1] * 4 + KEY.itemsize))
                for start in range(0, len(ids), per_file):
                    part = slice(start, start + per_file)
                    with self.changes(pace) as changes:
                        for piece in range(start, min(start + per_file, len(ids)), _PIECE_ROWS):
                            inner = slice(piece, min(piece + _PIECE_ROWS, start + per_file))
                            changes.write(row_keys(table, ids[inner]), row_values(rows[inner]))
                        changes.ingest()
                    done += len(ids[part])
                    if progress is not None:
                        progress(done)
        return done

    def spill_number(self) -> int:
        """A table number for rows that need not outlive the process; each is given out once."""
        return next(self._spills)

    def changes(self, pace: Pace, expected_bytes: int = 0) -> SortedChanges:
        """Starts many changes that become visible in one atomic step, built at a pace. A context manager."""
        file_bytes = _INGEST_BYTES if pace is UNHURRIED else max(_CHANGES_BYTES, expected_bytes // 16)
        return SortedChanges(self._db, self._options, self.path / "ingest", pace, file_bytes)

    def clear(self, first: int, last: int | None = None) -> None:
        """Removes every row of the tables from `first` to before `last` (None: of `first` alone)."""
        if self.is_empty(first, last):
            return
        with disk_errors(f"clearing a table in {self.path}"):
            self._db.delete_range(table_prefix(first), table_prefix(first + 1 if last is None else last), synced())

    def marker(self, name: str) -> str | None:
        """A durable word about this store, or None."""
        with disk_errors(f"reading from {self.path}"):
            value = self._db.get(marker_key(name))
        return None if value is None else bytes(value).decode()

    def set_marker(self, name: str, value: str | None) -> None:
        """Writes a marker, or removes it (None). On the disk when the call returns."""
        self.set_markers({name: value})

    def set_markers(self, markers: Mapping[str, str | None]) -> None:
        """Writes or removes (None) several markers in one atomic step. On the disk when the call returns."""
        self._write((marker_key(name), None if value is None else value.encode()) for name, value in markers.items())

    def size_bytes(self) -> int:
        """Bytes on the disk and in write buffers."""
        with disk_errors(f"measuring {self.path}"):
            return sum(
                int(self._db.property_int_value(name) or 0)
                for name in ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
            )

    def close(self) -> None:
        """Flushes and releases the folder; later calls raise StoreError."""
        with disk_errors(f"closing {self.path}"):
            self._db.close()
            self._options = None  # it holds the block cache

    def _scan(
        self, table: int, cursor: int, limit: int, *, with_values: bool = True
    ) -> tuple[int, list[bytes], list[bytes]]:
        """At most `limit` entries from a cursor on: the next cursor, -1 at the end, their keys and values."""
        keys: list[bytes] = []
        values: list[bytes] = []
        prefix = table_prefix(table)
        with disk_errors(f"reading from {self.path}"):
            iterator = self._db.iter()
            iterator.seek(prefix + cursor.to_bytes(8, "big"))
            while len(keys) < limit and iterator.valid() and iterator.key().startswith(prefix):
                keys.append(iterator.key())
                if with_values:
                    values.append(iterator.value())
                iterator.next()
            iterator.status()
        is_end = len(keys) < limit or not keys
        following = 1 << 64 if is_end else int.from_bytes(keys[-1][len(prefix) :], "big") + 1
        return following if following < 1 << 64 else -1, keys, values

    def _write(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        with disk_errors(f"writing to {self.path}"):
            for key, value in entries:
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
                if batch.size_in_bytes() >= self._limits.write_batch_bytes:
                    self._db.write(batch, synced())
                    batch = rocksdict.WriteBatch(raw_mode=True)
            if len(batch):
                self._db.write(batch, synced())

    def _check_sizes(self, values: list[bytes], dim: int) -> None:
        for value in values:
            if len(value) != dim * 4:
                raise StoreError(
                    f"{self.path}: a row has {len(value)} bytes, expected {dim * 4}; the store belongs to another "
                    "model, delete the folder to rebuild it"
                )


@contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Says what was done when a disk or the database failed; raises StoreError."""
    try:
        yield
    except EmberlineError:
        raise  # ours already, such as a shard that is not what was published
    except OSError as error:
        raise StoreError(f"{doing}: {error}") from error
    except Exception as error:  # rocksdict raises plain Exception with RocksDB's text
        text = str(error)
        if "LOCK" in text or "lock hold" in text:
            raise StoreError(
                f"{doing}: the store is open in another process or by another model; give each its own folder ({text})"
            ) from error
        if "Corruption" in text:
            raise StoreError(f"{doing}: the store is corrupt; delete the folder to rebuild it ({text})") from error
        raise StoreError(f"{doing}: {text}") from error
