"""Where a store's rows come from: what a published version offers, and anything else with the same face."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from storage.checkpoint.tables import Shard
from storage.specs import TableSpec


class TableSource(Protocol):
    """Tables of rows, readable several times over."""

    @property
    def path(self) -> Path:
        """Where it lies; for messages."""

    @property
    def snapshot(self) -> str:
        """The identity of exactly these rows: 32 hex digits."""

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """The tables, with their numbers of rows."""

    def shards(self, table: str) -> Iterator[Shard]:
        """A table's rows, ids ascending over all shards."""

    def table_digest(self, table: str) -> str:
        """A text that is the same exactly when the rows are the same."""


class DeltaSource(Protocol):
    """What changed in some tables between two snapshots; each id stands once, as a row or as removed."""

    @property
    def path(self) -> Path:
        """Where it lies; for messages."""

    @property
    def snapshot(self) -> str:
        """The snapshot that it leads to."""

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """The tables that it touches, with their numbers of changed rows."""

    def shards(self, table: str) -> Iterator[Shard]:
        """A table's new and changed rows, ids ascending over all shards."""

    def removed(self, table: str) -> np.ndarray:
        """The ids (m,) int64, ascending, that are gone from a table."""
