"""Defines the protocols of the sources of a store's rows, such as published versions and deltas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from storage.checkpoint.tables import Shard
from storage.errors import StoreError
from storage.specs import TableSpec


class RowSource(Protocol):
    """Gives the rows of some tables; they can be read several times."""

    @property
    def path(self) -> Path:
        """The path of the source, for messages."""

    @property
    def snapshot(self) -> str:
        """The snapshot that these rows are, or that this delta leads to, as 32 hex digits."""

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """The tables that it has rows of, or changes, with their numbers of rows."""

    def shards(self, table: str) -> Iterator[Shard]:
        """Yields a table's rows, or those that a delta adds or changes, with ids ascending over all shards."""


class TableSource(RowSource, Protocol):
    """Gives the rows of whole tables."""

    @property
    def equals(self) -> str | None:
        """Another snapshot that has exactly these rows, or None."""

    def uses(self, table: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields ids (n,) int64 and use counts (n,) uint8 of a table, ids ascending over all parts.

        They are hints: they are not checked, and some may be missing.
        """

    def table_digest(self, table: str) -> str:
        """Returns a text that is the same exactly when the rows are the same."""


class DeltaSource(RowSource, Protocol):
    """Gives the changes of some tables between two snapshots; each id occurs once, with a row or as removed."""

    def removed(self, table: str) -> np.ndarray:
        """Returns the ids (m,) int64, ascending, that are removed from a table."""


def check_tables(tables: Sequence[TableSpec], version: TableSource) -> None:
    """Raises StoreError unless a version has these tables with the same dim, row type and absent rows."""
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
        if found.absent != spec.absent:
            raise StoreError(
                f"{version.path}: ids without a row in table {spec.name!r} read as {found.absent}, in the store as "
                f"{spec.absent}; load it into a store of its own"
            )
