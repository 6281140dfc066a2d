"""Where a store's rows come from: what a published version offers, and anything else with the same face."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from storage.checkpoint.tables import Shard
from storage.errors import StoreError
from storage.specs import TableSpec


class RowSource(Protocol):
    """Rows of some tables, readable several times over."""

    @property
    def path(self) -> Path:
        """Where it lies; for messages."""

    @property
    def snapshot(self) -> str:
        """The snapshot that these rows are, or lead to: 32 hex digits."""

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """The tables that it has rows of, or touches, with their numbers of rows."""

    def shards(self, table: str) -> Iterator[Shard]:
        """A table's rows, of a delta the new and changed ones, ids ascending over all shards."""


class TableSource(RowSource, Protocol):
    """Whole tables."""

    @property
    def equals(self) -> str | None:
        """Another snapshot whose rows are exactly these."""

    def uses(self, table: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ids (n,) int64 and use counts (n,) uint8 of a table, ids ascending over all parts.

        Hints: nobody has checked them, and some may be missing.
        """

    def table_digest(self, table: str) -> str:
        """A text that is the same exactly when the rows are the same."""


class DeltaSource(RowSource, Protocol):
    """What changed in some tables between two snapshots; each id stands once, as a row or as removed."""

    def removed(self, table: str) -> np.ndarray:
        """The ids (m,) int64, ascending, that are gone from a table."""


def check_tables(tables: Sequence[TableSpec], version: TableSource) -> None:
    """Raises StoreError unless a version has these tables, of their dim and row type."""
    given = {spec.name: spec for spec in version.tables}
    for spec in tables:
        found = given.get(spec.name)
        if found is None or found.dim != spec.dim:
            raise StoreError(f"{version.path} has no table {spec.name!r} of dim {spec.dim}")
        if found.row_type != spec.row_type:
            raise StoreError(
                f"{version.path}: the rows of table {spec.name!r} are {found.row_type}, the store's are "
                f"{spec.row_type}; load it into a store of its own"
            )
