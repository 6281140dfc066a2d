"""How many rows of each table may stay in DRAM."""

from __future__ import annotations

from collections.abc import Sequence

from storage.errors import ConfigError
from storage.specs import TableSpec

# What an id costs beside its row, as measured on a table at its capacity: its place in a 64-byte line of five, its
# counter, the slots kept free for eviction.
INDEX_BYTES_PER_ROW = 28


def row_cost(table: TableSpec) -> int:
    """Bytes of DRAM that one row of a table takes, index included."""
    return table.row_bytes + INDEX_BYTES_PER_ROW


def check_dram_bytes(dram_bytes: int | None) -> int | None:
    """Returns it. Raises ConfigError for a budget that cannot be."""
    if dram_bytes is not None and not 0 <= dram_bytes < 2**63:
        raise ConfigError(f"dram_bytes is {dram_bytes}, expected 0 or more, below 2^63", field="dram_bytes")
    return dram_bytes


def split_budget(tables: Sequence[TableSpec], dram_bytes: int | None) -> list[int | None]:
    """Rows that each table may hold in DRAM; None where all of them fit.

    The bytes are shared in proportion to what each table would need whole; every table gets at least one row.
    """
    if check_dram_bytes(dram_bytes) is None:
        return [None] * len(tables)
    assert dram_bytes is not None
    needed = [table.rows * row_cost(table) for table in tables]
    total = sum(needed)
    if total <= dram_bytes:
        return [None] * len(tables)
    return [max(1, dram_bytes * need // total // row_cost(table)) for table, need in zip(tables, needed, strict=True)]
