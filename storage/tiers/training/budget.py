"""How the tables of a training share the DRAM that they may take."""

from __future__ import annotations

from typing import Protocol

# Of the whole, so much is divided equally and kept for each table; the rest goes to those that ask first.
_KEPT_SHARE = 0.25
# A table asks for a part of what it has at once, so that it does not ask with every batch.
_STEP = 0.25


class Share(Protocol):
    """A table that takes part. share_bytes: what it may take; the budget alone changes it."""

    share_bytes: int


class RowBudget:
    """dram_bytes: of rows, optimizer values, index and counts of all tables together."""

    def __init__(self, dram_bytes: int) -> None:
        self.dram_bytes = dram_bytes
        self._tables: list[Share] = []

    def join(self, table: Share) -> None:
        """A table joins with nothing; all join before the first asks."""
        self._tables.append(table)

    @property
    def kept_bytes(self) -> int:
        """What every table can have, whatever the others took."""
        return int(self.dram_bytes * _KEPT_SHARE / max(1, len(self._tables)))

    def ask(self, table: Share, wanted_bytes: int) -> None:
        """Lets a table's share grow to `wanted_bytes`, and some more, as far as there is room."""
        if wanted_bytes <= table.share_bytes:
            return
        kept = self.kept_bytes
        # What the others have, or can still have without asking anybody.
        taken = sum(max(other.share_bytes, kept) for other in self._tables if other is not table)
        most = self.dram_bytes - taken
        step = wanted_bytes + int(table.share_bytes * _STEP)
        table.share_bytes = max(table.share_bytes, min(most, step))
