"""The SSD tier: RocksDB, the durable truth of every row.

Keys are twelve bytes: table number (u32, big endian), then the id with its sign bit flipped (u64, big endian), so that
byte order is the order of ids. Values are the raw float32 of a row. Markers live under a table number of their own.
Several threads may read and write at once; the GIL is released during reads. One process a folder.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rocksdict

from storage.errors import EmberlineError, StoreError
from storage.tiers.ssd_options import SsdOptions, ingest_options, rocks_options, synced

_MARKERS = 0xFFFF_FFFF
MAX_TABLES = _MARKERS
_SIGN = np.uint64(1 << 63)
# 'V' and not 'S': numpy strips trailing zero bytes from 'S'.
_KEY = np.dtype([("table", ">u4"), ("id", ">u8")])
_INGEST_BYTES = 64 << 20

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

    @classmethod
    def open(cls, path: Path, limits: SsdOptions | None = None) -> SsdTier:
        """Opens or creates the store in a folder."""
        limits = limits or SsdOptions()
        options = rocks_options(limits)
        with _errors(f"opening {path}"):
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
        with _errors(f"reading {len(ids)} rows from {self.path}"):
            values = self._db.get(_keys(table, ids[order]))
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
        self._write(zip(_keys(table, ids), _values(rows), strict=True))

    def assign(self, table: int, ids: np.ndarray, rows: np.ndarray) -> int:
        """Writes only the rows whose ids are present; returns how many."""
        with _errors(f"reading from {self.path}"):
            present = [value is not None for value in self._db.get(_keys(table, ids))] if len(ids) else []
        chosen = np.fromiter(present, np.bool_, len(present))
        self.insert_or_assign(table, ids[chosen], rows[chosen])
        return int(chosen.sum())

    def erase(self, table: int, ids: np.ndarray) -> None:
        """Removes rows; absent ids are ignored. Durable when the call returns."""
        self._write((key, None) for key in _keys(table, ids))

    def export_batch(self, table: int, cursor: int, limit: int, dim: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Rows in ascending order of ids. cursor: 0 starts; returns the next cursor, -1 at the end, ids, rows."""
        keys: list[bytes] = []
        values: list[bytes] = []
        prefix = table.to_bytes(4, "big")
        with _errors(f"reading from {self.path}"):
            iterator = self._db.iter()
            iterator.seek(prefix + cursor.to_bytes(8, "big"))
            while len(keys) < limit and iterator.valid() and iterator.key().startswith(prefix):
                keys.append(iterator.key())
                values.append(iterator.value())
                iterator.next()
            iterator.status()
        if not keys:
            return -1, np.empty(0, np.int64), np.empty((0, dim), np.float32)
        self._check_sizes(values, dim)
        raw = np.frombuffer(b"".join(keys), _KEY)["id"].astype(np.uint64)
        rows = np.frombuffer(b"".join(values), np.dtype("<f4")).reshape(len(values), dim).astype(np.float32)
        last = int(raw[-1])
        following = last + 1 if len(keys) == limit and last + 1 < 1 << 64 else -1
        return following, (raw ^ _SIGN).view(np.int64), rows

    def bulk_load(
        self, table: int, shards: Iterable[tuple[np.ndarray, np.ndarray]], progress: Progress | None = None
    ) -> int:
        """Adds sorted rows by ingesting sorted files, a bounded number of bytes at a time; returns the number of rows.

        shards: (ids ascending and unique over all shards, rows float32). progress: called with rows done so far.
        """
        done = 0
        folder = self.path / "ingest"
        with _errors(f"bulk loading {self.path}"):
            folder.mkdir(exist_ok=True)
            for ids, rows in shards:
                per_file = max(1, _INGEST_BYTES // (rows.shape[1] * 4 + _KEY.itemsize))
                for start in range(0, len(ids), per_file):
                    part = slice(start, start + per_file)
                    self._ingest(folder, table, ids[part], rows[part])
                    done += len(ids[part])
                    if progress is not None:
                        progress(done)
        return done

    def clear(self, table: int) -> None:
        """Removes every row of a table."""
        first = table.to_bytes(4, "big")
        with _errors(f"clearing a table in {self.path}"):
            iterator = self._db.iter()
            iterator.seek(first)
            if iterator.valid() and iterator.key().startswith(first):
                self._db.delete_range(first, (table + 1).to_bytes(4, "big"), synced())
            iterator.status()

    def marker(self, name: str) -> str | None:
        """A durable word about this store, or None."""
        with _errors(f"reading from {self.path}"):
            value = self._db.get(_marker_key(name))
        return None if value is None else bytes(value).decode()

    def set_marker(self, name: str, value: str | None) -> None:
        """Writes a marker, or removes it (None). On the disk when the call returns."""
        self._write([(_marker_key(name), None if value is None else value.encode())])

    def size_bytes(self) -> int:
        """Bytes on the disk and in write buffers."""
        with _errors(f"measuring {self.path}"):
            return sum(
                int(self._db.property_int_value(name) or 0)
                for name in ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
            )

    def close(self) -> None:
        """Flushes and releases the folder; later calls raise StoreError."""
        with _errors(f"closing {self.path}"):
            self._db.close()

    def _ingest(self, folder: Path, table: int, ids: np.ndarray, rows: np.ndarray) -> None:
        path = folder / f"{secrets.token_hex(8)}.sst"
        writer = rocksdict.SstFileWriter(options=self._options)
        writer.open(str(path))
        for key, value in zip(_keys(table, ids), _values(rows), strict=True):
            writer[key] = value
        writer.finish()
        self._db.ingest_external_file([str(path)], ingest_options())

    def _write(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        with _errors(f"writing to {self.path}"):
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


def _keys(table: int, ids: np.ndarray) -> list[bytes]:
    keys = np.empty(len(ids), _KEY)
    keys["table"] = table
    keys["id"] = np.ascontiguousarray(ids, np.int64).view(np.uint64) ^ _SIGN
    raw: list[bytes] = keys.view(f"V{_KEY.itemsize}").tolist()
    return raw


def _values(rows: np.ndarray) -> list[bytes]:
    raw = np.ascontiguousarray(rows, np.dtype("<f4"))
    values: list[bytes] = raw.view(f"V{raw.shape[1] * 4}").ravel().tolist()
    return values


def _marker_key(name: str) -> bytes:
    return _MARKERS.to_bytes(4, "big") + name.encode()


@contextmanager
def _errors(doing: str) -> Iterator[None]:
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
