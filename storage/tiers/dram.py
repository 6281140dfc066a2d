"""The DRAM tier: the native table behind the verbs that all tiers share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from storage._table import CapacityExceeded, Table
from storage.errors import ConfigError, StoreError
from storage.tiers.base import Encoded, Flags, Ids, Rows


class DramTier:
    """Rows of one table in memory. Readers take no lock; one writer at a time.

    dim: values of a row. row_type: how they are held. capacity_rows: 0 grows without bound. Rows come in as float32
    (n, dim) or as they are held, uint8 (n, row_bytes). Errors: ConfigError for sizes that cannot be, StoreError when
    the table or the memory is full, TypeError and ValueError that name an array of the wrong kind.
    """

    def __init__(self, dim: int, *, capacity_rows: int = 0, row_type: str = "fp32") -> None:
        try:
            self.table = Table(dim, capacity_rows=capacity_rows, row_type=row_type)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"a table of dim {dim} and capacity_rows {capacity_rows} cannot be built: dim is 1 to 4096, "
                "capacity_rows 0 or more and below 2^32",
                field="dim" if not 1 <= dim <= 4096 else "capacity_rows",
            ) from error

    @property
    def dim(self) -> int:
        """Values of a row."""
        return self.table.dim

    @property
    def capacity_rows(self) -> int:
        """Rows that it may hold; 0 without a bound."""
        return self.table.capacity_rows

    def size(self) -> int:
        """Rows in the table."""
        return self.table.size()

    def memory_bytes(self) -> int:
        """Bytes that index, rows and counters take."""
        return self.table.memory_bytes()

    def find(self, ids: Ids) -> tuple[Rows, Flags]:
        """ids (n,) -> rows (n, dim), found (n,); rows of absent ids are zeros."""
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

    def export_encoded(self, cursor: int, limit: int) -> tuple[int, Ids, Encoded, Flags]:
        """As `export_batch`, with rows (m, row_bytes) as they are held."""
        return self.table.export_encoded(cursor, limit)

    def reserve(self, rows: int) -> None:
        """Makes room for this many rows in all."""
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
