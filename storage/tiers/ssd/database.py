"""The database of a store holds changed rows by generation, lists of changed ids, and markers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import rocksdict

from storage.errors import CorruptStoreError
from storage.tiers.ssd.damage import Damage
from storage.tiers.ssd.disk_errors import disk_errors
from storage.tiers.ssd.keys import CHANGED, GENERATIONS, SPILLS, group_prefix, ids_of, marker_key, row_keys
from storage.tiers.ssd.options import SsdOptions, ingest_options, rocks_options, synced

_log = logging.getLogger(__name__)
# Entries that one iterator reads before another one replaces it.
_SCAN_KEYS = 1 << 16
_SCAN_ENTRIES = 1 << 12
# For each id its encoded row, b"" when it has no row, or None when the group has no change of it.
Values = list[bytes | None]


class _Opened:
    """One opening of RocksDB. `users` counts the calls that use it now."""

    def __init__(self, raw: Any, *, read_only: bool = False) -> None:
        self.raw = raw
        self.read_only = read_only
        self.users = 0


class Database:
    """Wraps RocksDB in a folder. Thread-safe; the GIL is free during reads.

    After a write has failed RocksDB refuses all others until it is opened again, which the next write does. Reads go on
    meanwhile, also when it cannot be opened for writing: they use a second, read-only opening of the same folder.
    """

    def __init__(self, path: Path, limits: SsdOptions, *, direct: bool, damage: Damage | None = None) -> None:
        """Opens or creates the database. damage: is notified of damaged files."""
        self.path = path
        self._damage = damage or Damage()
        self.options = rocks_options(limits, direct=direct)
        self._limits = limits
        self._changed = threading.Condition()
        self._mending = threading.Lock()
        self._failed = False
        self.openings = 1
        with disk_errors(f"opening {path}"):
            self._opened = _Opened(rocksdict.Rdict(str(path), self.options))

    def mend(self) -> None:
        """Opens RocksDB again when a write has failed since it was opened.

        The write that failed may still be on the disk, which only the next opening shows; `openings` counts them.
        Raises StoreError; reads go on as before.
        """
        if not self._failed:
            return
        with self._mending:
            if not self._failed:
                return
            with self._damage.noted(), disk_errors(f"opening {self.path} again"):
                if not self._opened.read_only:
                    access = rocksdict.AccessType.read_only(False)
                    raw = rocksdict.Rdict(str(self.path), self.options, access_type=access)
                    self._replace(_Opened(raw, read_only=True))
                self._replace(_Opened(rocksdict.Rdict(str(self.path), self.options)))
            self._failed = False
            self.openings += 1
        _log.warning("%s: was opened again after a write had failed", self.path)

    def get(self, group: int, ids: np.ndarray) -> Values:
        """Returns the changes that a group has of ids (n,) int64; ascending ids are fastest."""
        if len(ids) == 0:
            return []
        with self._reading(f"reading {len(ids)} changed rows from {self.path}") as raw:
            values: Values = raw.get(row_keys(group, ids))
        return values

    def write(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Puts and deletes (None) entries in batches of bounded size, each on the disk before the next."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        with self._writing(f"writing to {self.path}") as raw:
            for key, value in entries:
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
                if batch.size_in_bytes() >= self._limits.write_batch_bytes:
                    raw.write(batch, synced())
                    batch = rocksdict.WriteBatch(raw_mode=True)
            if len(batch):
                raw.write(batch, synced())

    def ingest(self, files: Sequence[Path]) -> None:
        """Moves sorted files into the database in one atomic step that is on the disk when the call returns."""
        with self._writing(f"writing to {self.path}") as raw:
            raw.ingest_external_file([str(path) for path in files], ingest_options())

    def groups(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields every group of changed rows with its ids (n,), ascending, some at a time; skips empty groups."""
        yield from self._ids_by_group(GENERATIONS, CHANGED)

    def changed(self, table: int) -> Iterator[np.ndarray]:
        """Yields the ids (n,) on the list of a table, ascending, some at a time."""
        return (ids for _, ids in self._ids_by_group(CHANGED + table, CHANGED + table + 1))

    def clear_groups(self, first: int, last: int, *, sync: bool = True) -> None:
        """Removes everything of the groups from `first` to before `last`."""
        with self._writing(f"clearing {self.path}") as raw:
            options = synced() if sync else rocksdict.WriteOptions()
            raw.delete_range(group_prefix(first), group_prefix(last), options)

    def compact_groups(self, first: int, last: int) -> None:
        """Frees the disk space of what was cleared. It releases the GIL, and its rate is bounded."""
        with self._writing(f"compacting {self.path}") as raw:
            raw.compact_range(group_prefix(first), group_prefix(last))

    def marker(self, name: str) -> str | None:
        """Returns a durable text, or None."""
        with self._reading(f"reading from {self.path}") as raw:
            value = raw.get(marker_key(name))
        return None if value is None else bytes(value).decode()

    def markers(self, prefix: str) -> dict[str, str]:
        """Returns all markers whose names begin with a prefix."""
        found: dict[str, str] = {}
        start = marker_key(prefix)
        for key, value in self._scan(start, None):
            if not key.startswith(start):
                break
            found[key[4:].decode()] = value.decode()
        return found

    def set_markers(self, markers: Mapping[str, str | None]) -> None:
        """Writes or removes (None) markers in one atomic step. They are on the disk when the call returns."""
        self.write((marker_key(name), None if value is None else value.encode()) for name, value in markers.items())

    def begins_with_rows(self) -> bool:
        """Returns whether rows lie where the first format had them: below all groups, or at numbers of spills."""
        first = next(self._scan(group_prefix(0), group_prefix(GENERATIONS)), None)
        spilled = next(self._scan(group_prefix(SPILLS), group_prefix(0xFFFF_FFFF)), None)
        return first is not None or spilled is not None

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields all entries in the order of keys."""
        return self._scan(b"", None)

    def size_bytes(self) -> int:
        """Returns the bytes on the disk and in write buffers."""
        with self._reading(f"measuring {self.path}") as raw:
            return sum(
                int(raw.property_int_value(name) or 0)
                for name in ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
            )

    def close(self) -> None:
        """Flushes and releases the folder. Raises StoreError when it could not flush; it is closed even then."""
        with self._changed:
            self._changed.wait_for(lambda: self._opened.users == 0)
        try:
            with disk_errors(f"closing {self.path}"):
                self._opened.raw.close()
        finally:
            self.options = None  # it holds the block cache

    @contextmanager
    def _reading(self, doing: str) -> Iterator[Any]:
        """Gives RocksDB for a read. No iterator may outlive the context: opening the folder again waits for its end."""
        with self._changed:
            opened = self._opened
            opened.users += 1
        try:
            with self._damage.noted(), disk_errors(doing):
                yield opened.raw
        finally:
            with self._changed:
                opened.users -= 1
                self._changed.notify_all()

    @contextmanager
    def _writing(self, doing: str) -> Iterator[Any]:
        """Gives RocksDB for a write."""
        self.mend()
        with self._reading(doing) as raw:
            try:
                yield raw
            except BaseException:
                self._failed = True
                raise

    def _replace(self, opened: _Opened) -> None:
        """Directs calls to this opening; closes the one before once the calls in it have ended."""
        with self._changed:
            before, self._opened = self._opened, opened
            self._changed.wait_for(lambda: before.users == 0)
        with suppress(Exception):  # what it cannot flush is in its log
            before.raw.close()

    def _ids_by_group(self, first: int, last: int) -> Iterator[tuple[int, np.ndarray]]:
        start: bytes | None = group_prefix(first)
        while start is not None:
            keys, start = self._keys(start, group_prefix(last))
            if keys:
                yield int.from_bytes(keys[0][:4], "big"), ids_of(keys)

    def _keys(self, start: bytes, end: bytes) -> tuple[list[bytes], bytes | None]:
        """Returns keys of one group from `start` to before `end`, and the first key after them, or None."""
        keys: list[bytes] = []
        with self._reading(f"reading from {self.path}") as raw:
            # Not `keys()`: it ends at a damaged block as if there were no more, and a change would be forgotten.
            iterator = raw.iter()
            try:
                iterator.seek(start)
                while iterator.valid() and (key := iterator.key()) < end:
                    if keys and (len(keys) == _SCAN_KEYS or key[:4] != keys[0][:4]):
                        return keys, key
                    keys.append(key)
                    iterator.next()
                iterator.status()
            finally:
                del iterator
        return keys, None

    def _scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        following: bytes | None = start
        while following is not None:
            entries, following = self._entries(following, end)
            yield from entries

    def _entries(self, start: bytes, end: bytes | None) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Returns keys and values as `_keys` does, but of any groups."""
        entries: list[tuple[bytes, bytes]] = []
        with self._reading(f"reading from {self.path}") as raw:
            iterator = raw.iter()
            try:
                iterator.seek(start)
                while iterator.valid() and (end is None or iterator.key() < end):
                    if len(entries) == _SCAN_ENTRIES:
                        return entries, iterator.key()
                    entries.append((iterator.key(), iterator.value()))
                    iterator.next()
                iterator.status()
            finally:
                del iterator
        return entries, None


def check_value(path: Path, value: bytes, row_bytes: int) -> None:
    """Raises CorruptStoreError for a row of another size."""
    if len(value) != row_bytes:
        raise CorruptStoreError(
            f"{path}: a row has {len(value)} bytes, expected {row_bytes}; the store is damaged, or another model's"
        )
