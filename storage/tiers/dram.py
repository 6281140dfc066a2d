"""The DRAM tier: a native table, or one table's part of a native cache, behind the same methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from storage._table import Cache, CacheTable, CapacityExceeded, Table
from storage.errors import ConfigError, StoreError
from storage.tiers.arrays import Encoded, Flags, Ids, Rows


class DramTier:
    """Rows of one table in memory. Readers take no lock; one writer at a time.

    dim: values of a row. row_type: how they are held. capacity_rows: 0 grows without bound. Rows come in as float32
    (n, dim) or as they are held, uint8 (n, row_bytes). Errors: ConfigError for sizes that cannot be, StoreError when
    the table or the memory is full, TypeError and ValueError that name an array of the wrong kind.
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
        """The rows of one table in a cache that it shares with others."""
        tier = cls.__new__(cls)
        tier.table = table
        tier._cache = cache
        return tier

    @property
    def dim(self) -> int:
        """Values of a row."""
        return self.table.dim

    @property
    def capacity_rows(self) -> int:
        """Rows that a table of its own may hold; 0 without a bound, and where a cache is shared."""
        return self.table.capacity_rows if isinstance(self.table, Table) else 0

    def size(self) -> int:
        """Rows in the table."""
        return self.table.size()

    def memory_bytes(self) -> int:
        """Bytes that index, rows and counters take; of a shared cache, by this table's share of the rows."""
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
        """rows (n, dim), freq (n,) use counts as `export_batch` gives them. When it is full, the ids before are in."""
        with _full():
            self.table.insert_or_assign(ids, rows, freq)

    def insert_and_evict(self, ids: Ids, rows: Rows | Encoded) -> int:
        """As a cache: leaves rows that are there, lets colder rows go for hotter ids. Returns the number admitted."""
        with _full():
            return self.table.insert_and_evict(ids, rows)

    def assign(self, ids: Ids, rows: Rows | Encoded) -> int:
        """Replaces the rows of ids that are there, leaves out the others. Returns the number replaced."""
        with _full():
            return self.table.assign(ids, rows)

    def erase(self, ids: Ids) -> int:
        """Takes rows out. Returns how many were there."""
        return self.table.erase(ids)

    def export_batch(self, cursor: int, limit: int) -> tuple[int, Ids, Rows, Flags]:
        """At most `limit` rows from a cursor on, 0 first: next cursor (-1 at the end), ids, rows, use counts (m,).

        Every row comes once if nothing is inserted between the calls.
        """
        return self.table.export_batch(cursor, limit)

    def check_integrity(self) -> None:
        """Raises RuntimeError that says which rule of the table, or of the cache, is broken. Slow; for tests."""
        if isinstance(self.table, Table):
            self.table.check_integrity()
        elif self._cache is not None:
            self._cache.check_integrity()

    def export_encoded(self, cursor: int, limit: int) -> tuple[int, Ids, Encoded, Flags]:
        """As `export_batch`, with rows (m, row_bytes) as they are held."""
        return self.table.export_encoded(cursor, limit)

    def reserve(self, rows: int) -> None:
        """Makes room for this many rows in all; what a cache has room for is said by its budget alone."""
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
