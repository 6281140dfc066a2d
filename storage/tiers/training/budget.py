"""Divides the DRAM budget of a training among its tables."""

from __future__ import annotations

from typing import Protocol

from storage.errors import ConfigError

# This share of the budget is divided equally and kept for each table; the rest goes to the tables that ask first.
_KEPT_SHARE = 0.25
# A table gets this part of its share beyond what it asks for, so that it does not ask with every batch.
_STEP = 0.25


class Share(Protocol):
    """A table that shares the budget."""

    #: The name of the table, in messages.
    name: str
    #: The bytes that the table may take; the budget alone changes it.
    share_bytes: int


class RowBudget:
    """A budget of DRAM that several tables share.

    dram_bytes: the bytes of rows, optimizer values, index and counts of all tables together.
    """

    def __init__(self, dram_bytes: int) -> None:
        self.dram_bytes = dram_bytes
        self._divided_bytes = dram_bytes
        self._tables: list[Share] = []

    def join(self, table: Share, fixed_bytes: int = 0) -> None:
        """Adds a table, whose share is 0 at first. All tables join before the first one asks.

        fixed_bytes: what the table takes beside its share, as its filter does. Raises ConfigError when nothing is left.
        """
        self._tables.append(table)
        self._divided_bytes -= fixed_bytes
        if self._divided_bytes <= 0:
            raise ConfigError(
                f"dram_bytes: the filter of table {table.name!r} takes {fixed_bytes:,} bytes, and with it nothing is "
                f"left of {self.dram_bytes:,} for rows; give more dram_bytes, or a filter for fewer ids",
                field="training.dram_bytes",
            )

    @property
    def kept_bytes(self) -> int:
        """The bytes that every table can have, whatever the others took."""
        return int(self._divided_bytes * _KEPT_SHARE / max(1, len(self._tables)))

    def ask(self, table: Share, wanted_bytes: int) -> None:
        """Lets a table's share grow to `wanted_bytes`, and some more, as far as there is room."""
        if wanted_bytes <= table.share_bytes:
            return
        kept = self.kept_bytes
        # The bytes that the others have, or can have in any case.
        taken = sum(max(other.share_bytes, kept) for other in self._tables if other is not table)
        most = self._divided_bytes - taken
        step = wanted_bytes + int(table.share_bytes * _STEP)
        table.share_bytes = max(table.share_bytes, min(most, step))
