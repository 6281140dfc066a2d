"""The DRAM tier offers the same methods over a native table and over one table's part of a native cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from storage._table import Cache, CacheTable, CapacityExceeded, Table
from storage.errors import ConfigError, StoreError
from storage.tiers.arrays import Encoded, Flags, Ids, Rows


class DramTier:
    """Holds rows of one table in memory. Readers take no lock; one thread writes at a time.

    dim: values of a row. row_type: how they are held. capacity_rows: the most rows; 0 grows without bound. Rows come in
    as float32 (n, dim) or as they are held, uint8 (n, row_bytes). Raises ConfigError for sizes that are not allowed,
    StoreError when the table or the memory is full, and TypeError or ValueError that names an array of the wrong kind.
    """

    _cache: Cache | None = None

    def __init__(self, dim: int, *, capacity_rows: int = 0, row_type: str = "fp32") -> None:
        try:
            self.table: Table | CacheTable = Table(dim, capacity_rows=capacity_rows, row_type=row_type)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"a table of dim {dim} and capacity_rows {capacity_rows} cannot be built: dim is 1 to 4096, "
                "capacity_rows 0 or more and below 2^32",
                field="dim" if not 1 <= dim <= 4096 else "capacity_rows",
            ) from error

    @classmethod
    def over(cls, cache: Cache, table: CacheTable) -> DramTier:
        """Makes a tier of the rows of one table in a cache that it shares with others."""
        tier = cls.__new__(cls)
        tier.table = table
        tier._cache = cache
        return tier

    @property
    def dim(self) -> int:
        """The number of values in a row."""
        return self.table.dim

    @property
    def capacity_rows(self) -> int:
        """The rows that a table of its own may hold; 0 when it has no bound, and when it shares a cache."""
        return self.table.capacity_rows if isinstance(self.table, Table) else 0

    def size(self) -> int:
        """Returns the number of rows in the table."""
        return self.table.size()

    def memory_bytes(self) -> int:
        """Returns the bytes of index, rows and counters; of a shared cache, by this table's share of the rows."""
        if isinstance(self.table, Table):
            return self.table.memory_bytes()
        assert self._cache is not None
        return self._cache.memory_bytes() * self.table.size() // max(1, self._cache.size())

    def find(self, ids: Ids) -> tuple[Rows, Flags]:
        """Reads rows: ids (n,) -> rows (n, dim), found (n,); rows of absent ids are zeros."""
        rows = np.empty((len(ids), self.table.dim), np.float32)
        found = np.empty(len(ids), np.uint8)
        self.table.find(ids, rows, found)
        return rows, found

    def insert_or_assign(self, ids: Ids, rows: Rows | Encoded, freq: Flags | None = None) -> None:
        """Stores rows of ids. When it raises because the table is full, the ids before that are stored.

        rows: (n, dim), or encoded. freq: (n,) use counts as `export_batch` gives them.
        """
        with _full():
            self.table.insert_or_assign(ids, rows, freq)

    def insert_and_evict(self, ids: Ids, rows: Rows | Encoded) -> int:
        """Inserts as a cache does: keeps rows that are there and evicts colder rows for hotter ids.

        Returns the number of rows admitted.
        """
        with _full():
            return self.table.insert_and_evict(ids, rows)

    def assign(self, ids: Ids, rows: Rows | Encoded) -> int:
        """Replaces the rows of ids that are there and ignores the others. Returns the number replaced."""
        with _full():
            return self.table.assign(ids, rows)

    def erase(self, ids: Ids) -> int:
        """Removes the rows of ids. Returns how many were there."""
        return self.table.erase(ids)

    def export_batch(self, cursor: int, limit: int) -> tuple[int, Ids, Rows, Flags]:
        """Returns at most `limit` rows from a cursor on: next cursor (-1 at the end), ids, rows, use counts (m,).

        The first cursor is 0. Every row comes once if nothing is inserted between the calls.
        """
        return self.table.export_batch(cursor, limit)

    def check_integrity(self) -> None:
        """Raises a RuntimeError that says which rule of the table, or of the cache, is broken. Slow; for tests."""
        if isinstance(self.table, Table):
            self.table.check_integrity()
        elif self._cache is not None:
            self._cache.check_integrity()

    def export_encoded(self, cursor: int, limit: int) -> tuple[int, Ids, Encoded, Flags]:
        """Does what `export_batch` does, with rows (m, row_bytes) as they are held."""
        return self.table.export_encoded(cursor, limit)

    def reserve(self, rows: int) -> None:
        """Makes room for this many rows in all. Does nothing for a shared cache, whose budget sets its room."""
        if isinstance(self.table, Table):
            with _full():
                self.table.reserve(rows)


@contextmanager
def _full() -> Iterator[None]:
    try:
        yield
    except CapacityExceeded as error:
        raise StoreError(str(error)) from error
    except MemoryError as error:
        raise StoreError("the DRAM tier got no more memory from the system; lower dram_bytes") from error
