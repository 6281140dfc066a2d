"""Where a store's rows come from: what a published version offers, and anything else with the same face."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from storage.checkpoint.tables import Shard
from storage.specs import TableSpec


class TableSource(Protocol):
    """Tables of rows, readable several times over."""

    @property
    def path(self) -> Path:
        """Where it lies; for messages."""

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """The tables, with their numbers of rows."""

    def shards(self, table: str) -> Iterator[Shard]:
        """A table's rows, ids ascending over all shards."""

    def table_digest(self, table: str) -> str:
        """A text that is the same exactly when the rows are the same."""
