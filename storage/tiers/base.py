"""What every tier can do, with one meaning for each verb. n ids, m rows exported, D values of a row."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
Flags = NDArray[np.uint8]
# (n, row_bytes): rows as they are stored.
Encoded = NDArray[np.uint8]


@runtime_checkable
class Tier(Protocol):
    """Rows of one table, by any int64 id. Errors: StoreError when the tier fails or is full."""

    def find(self, ids: Ids) -> tuple[Rows, Flags]:
        """ids (n,) -> rows (n, D), found (n,); rows of absent ids are zeros."""

    def insert_or_assign(self, ids: Ids, rows: Rows) -> None:
        """Puts rows (n, D), whether or not the ids are there. The last of equal ids wins."""

    def insert_and_evict(self, ids: Ids, rows: Rows) -> int:
        """As a cache: leaves rows that are there, lets colder rows go for hotter ids. Returns the number admitted."""

    def assign(self, ids: Ids, rows: Rows) -> int:
        """Replaces the rows of ids that are there, leaves out the others. Returns the number replaced."""

    def erase(self, ids: Ids) -> int:
        """Takes rows out. Returns how many were there."""

    def export_batch(self, cursor: int, limit: int) -> tuple[int, Ids, Rows, Flags]:
        """At most `limit` rows from a cursor on, 0 first: next cursor (-1 at the end), ids, rows, use counts (m,)."""

    def reserve(self, rows: int) -> None:
        """Makes room for this many rows in all."""
