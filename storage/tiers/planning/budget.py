"""Divides a DRAM budget among the row sizes."""

from __future__ import annotations

from collections.abc import Sequence

from storage.errors import ConfigError
from storage.specs import TableSpec

# The bytes that an id costs beside its row: its slot in a 64-byte bucket of four at 80% load, its counter, and its
# share of what the cache remembers about ids outside. The fixed bytes of a slab, some 0.2 MiB, are not included.
INDEX_BYTES_PER_ROW = 22


def row_cost(table: TableSpec) -> int:
    """Returns the bytes of DRAM that a row of a table takes, index included, in a cache of a million rows or more."""
    return table.row_bytes + INDEX_BYTES_PER_ROW


def check_dram_bytes(dram_bytes: int | None) -> int | None:
    """Returns the budget. Raises ConfigError for one that is not allowed."""
    if dram_bytes is not None and not 0 <= dram_bytes < 2**63:
        raise ConfigError(f"dram_bytes is {dram_bytes}, expected 0 or more, below 2^63", field="dram_bytes")
    return dram_bytes


def split_bytes(needed: Sequence[int], weights: Sequence[float], total: int) -> list[int]:
    """Divides bytes among slabs in proportion to their weights, but gives none more than it needs.

    needed: the bytes that each would take whole. When all of them fit, the rest is divided by need, as room to grow.
    The sum is at most `total`.
    """
    shares = [0] * len(needed)
    if sum(needed) <= total:
        spare = total - sum(needed)
        all_needed = max(1, sum(needed))
        return [need + spare * need // all_needed for need in needed]
    open_ = [index for index, need in enumerate(needed) if need > 0]
    left = total
    while open_:
        weight = sum(weights[index] for index in open_)
        parts = {index: int(left * (weights[index] / weight if weight > 0 else 1 / len(open_))) for index in open_}
        full = [index for index in open_ if parts[index] >= needed[index]]
        if not full:
            for index in open_:
                shares[index] = parts[index]
            break
        for index in full:
            shares[index] = needed[index]
            left -= needed[index]
        open_ = [index for index in open_ if index not in full]
    return shares
