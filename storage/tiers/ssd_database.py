"""The database of a store: changed rows by generation, lists of changed ids, markers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import rocksdict

from storage.errors import StoreError
from storage.tiers.disk_errors import disk_errors
from storage.tiers.ssd_keys import CHANGED, GENERATIONS, SPILLS, group_prefix, ids_of, marker_key, row_keys
from storage.tiers.ssd_options import SsdOptions, rocks_options, synced

_SCAN_KEYS = 1 << 16
# Value: the ids' own rows, encoded; nothing: the id has no row; not there: nothing is said of it.
Values = list[bytes | None]


class Database:
    """RocksDB in a folder. Several threads may read and write at once; the GIL is free during reads."""

    def __init__(self, path: Path, limits: SsdOptions, *, direct: bool) -> None:
        self.path = path
        self.options = rocks_options(limits, direct=direct)
        self._limits = limits
        with disk_errors(f"opening {path}"):
            self.raw = rocksdict.Rdict(str(path), self.options)

    def get(self, group: int, ids: np.ndarray) -> Values:
        """What a group says of ids (n,) int64, ascending is fastest."""
        if len(ids) == 0:
            return []
        with disk_errors(f"reading {len(ids)} changed rows from {self.path}"):
            values: Values = self.raw.get(row_keys(group, ids))
        return values

    def write(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Puts and deletes (None), in batches of bounded size, each on the disk before the next."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        with disk_errors(f"writing to {self.path}"):
            for key, value in entries:
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
                if batch.size_in_bytes() >= self._limits.write_batch_bytes:
                    self.raw.write(batch, synced())
                    batch = rocksdict.WriteBatch(raw_mode=True)
            if len(batch):
                self.raw.write(batch, synced())

    def groups(self) -> Iterator[tuple[int, np.ndarray]]:
        """Every group of changed rows with its ids (n,), ascending, some at a time; empty groups are left out."""
        yield from self._ids_by_group(GENERATIONS, CHANGED)

    def changed(self, table: int) -> Iterator[np.ndarray]:
        """The ids (n,) on the list of a table, ascending, some at a time."""
        return (ids for _, ids in self._ids_by_group(CHANGED + table, CHANGED + table + 1))

    def clear_groups(self, first: int, last: int, *, sync: bool = True) -> None:
        """Removes everything of the groups from `first` to before `last`."""
        with disk_errors(f"clearing {self.path}"):
            options = synced() if sync else rocksdict.WriteOptions()
            self.raw.delete_range(group_prefix(first), group_prefix(last), options)

    def compact_groups(self, first: int, last: int) -> None:
        """Gives back the disk space of what was cleared. Holds no GIL; its rate is bounded."""
        with disk_errors(f"compacting {self.path}"):
            self.raw.compact_range(group_prefix(first), group_prefix(last))

    def marker(self, name: str) -> str | None:
        """A durable word, or None."""
        with disk_errors(f"reading from {self.path}"):
            value = self.raw.get(marker_key(name))
        return None if value is None else bytes(value).decode()

    def markers(self, prefix: str) -> dict[str, str]:
        """All markers whose names begin so."""
        found: dict[str, str] = {}
        start = marker_key(prefix)
        for key, value in self._scan(start, None):
            if not key.startswith(start):
                break
            found[key[4:].decode()] = value.decode()
        return found

    def set_markers(self, markers: Mapping[str, str | None]) -> None:
        """Writes or removes (None) markers in one atomic step. On the disk when the call returns."""
        self.write((marker_key(name), None if value is None else value.encode()) for name, value in markers.items())

    def begins_with_rows(self) -> bool:
        """Whether rows lie where the first format had them, below all groups."""
        first = next(self._scan(group_prefix(0), group_prefix(GENERATIONS)), None)
        spilled = next(self._scan(group_prefix(SPILLS), group_prefix(0xFFFF_FFFF)), None)
        return first is not None or spilled is not None

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Everything, in the order of keys."""
        return self._scan(b"", None)

    def size_bytes(self) -> int:
        """Bytes on the disk and in write buffers."""
        with disk_errors(f"measuring {self.path}"):
            return sum(
                int(self.raw.property_int_value(name) or 0)
                for name in ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
            )

    def close(self) -> None:
        """Flushes and releases the folder."""
        with disk_errors(f"closing {self.path}"):
            self.raw.close()
            self.options = None  # it holds the block cache

    def _ids_by_group(self, first: int, last: int) -> Iterator[tuple[int, np.ndarray]]:
        end = group_prefix(last)
        keys: list[bytes] = []
        with disk_errors(f"reading from {self.path}"):
            # Not `keys()`: it ends at a damaged block as if there were no more, and a change would be forgotten.
            iterator = self.raw.iter()
            iterator.seek(group_prefix(first))
            while iterator.valid():
                key = iterator.key()
                if key >= end:
                    break
                if keys and (len(keys) == _SCAN_KEYS or key[:4] != keys[0][:4]):
                    yield int.from_bytes(keys[0][:4], "big"), ids_of(keys)
                    keys = []
                keys.append(key)
                iterator.next()
            iterator.status()
        if keys:
            yield int.from_bytes(keys[0][:4], "big"), ids_of(keys)

    def _scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        with disk_errors(f"reading from {self.path}"):
            iterator = self.raw.iter()
            iterator.seek(start)
            while iterator.valid() and (end is None or iterator.key() < end):
                yield iterator.key(), iterator.value()
                iterator.next()
            iterator.status()


def check_value(path: Path, value: bytes, row_bytes: int) -> None:
    """Raises StoreError for a row of another size."""
    if len(value) != row_bytes:
        raise StoreError(
            f"{path}: a row has {len(value)} bytes, expected {row_bytes}; the store belongs to another model, delete "
            "the folder to rebuild it"
        )
