"""Where a store's rows come from: what a published version offers, and anything else with the same face."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from storage.checkpoint.tables import Shard
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

    def table_digest(self, table: str) -> str:
        """A text that is the same exactly when the rows are the same."""


class DeltaSource(RowSource, Protocol):
    """What changed in some tables between two snapshots; each id stands once, as a row or as removed."""

    def removed(self, table: str) -> np.ndarray:
        """The ids (m,) int64, ascending, that are gone from a table."""
