"""Collects what a store counted, and how many rows and bytes each tier holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from storage._table import OverlayTable
from storage.specs import TableSpec
from storage.tiers.counting import COUNTED, LookupTotals
from storage.tiers.dram_cache import DramCache
from storage.tiers.listeners import Held

_TIERS = ("hbm", "overlay", "dram", "ssd")


@dataclass(frozen=True)
class TableStats:
    """The part of `StoreStats` that belongs to one table."""

    hits: dict[str, int]
    absent: int
    unresolved: int
    rows: dict[str, int]
    #: Bytes by tier without SSD, whose bytes are known for all tables together only. A cache that tables share is
    #: divided by their shares of the rows.
    bytes: dict[str, int]
    #: The rows that came into DRAM because they were asked for.
    promotions: int
    #: The rows that DRAM evicted for others or for a smaller budget.
    evictions: int


@dataclass(frozen=True)
class StoreStats:
    """Counts since the store was opened, and the rows and bytes that each tier holds now.

    The keys of the dicts are "hbm", "overlay", "dram" and "ssd".
    """

    hits: dict[str, int]
    absent: int
    unresolved: int
    #: Rows by tier. "hbm" sums over all GPUs. "ssd" counts the base; after merges it is exact for tables that DRAM
    #: holds whole, and for the others it is the number that was loaded.
    rows: dict[str, int]
    #: Bytes by tier. "hbm" sums over all GPUs.
    bytes: dict[str, int]
    promotions: int
    #: The reads that were not offered to DRAM because the promotion queue was full.
    promotions_dropped: int
    evictions: int
    #: The absent ids that are remembered.
    negative_ids: int
    #: The same counts and sizes by name of the table.
    tables: dict[str, TableStats]
    #: Lookups that waited for rows of the SSD, the distinct rows that they read, and the nanoseconds that they waited.
    reads: int = 0
    rows_read: int = 0
    read_ns: int = 0

    def of_lookups(self, totals: LookupTotals) -> StoreStats:
        """Returns the same sizes with the counts and times of lookups."""
        counted = self.counted(totals.by_table)
        return replace(counted, reads=totals.reads, rows_read=totals.rows_read, read_ns=totals.read_ns)

    def counted(self, by_table: np.ndarray) -> StoreStats:
        """Returns the same sizes and times with other counts: (T, 6) as in COUNTED, tables in the order of `tables`."""
        tables = {
            name: TableStats(*_counts(row), stats.rows, stats.bytes, stats.promotions, stats.evictions)
            for (name, stats), row in zip(self.tables.items(), by_table, strict=True)
        }
        return StoreStats(
            *_counts(by_table.sum(0)),
            self.rows,
            self.bytes,
            self.promotions,
            self.promotions_dropped,
            self.evictions,
            self.negative_ids,
            tables,
            self.reads,
            self.rows_read,
            self.read_ns,
        )


def _counts(row: np.ndarray) -> tuple[dict[str, int], int, int]:
    counted = dict(zip(COUNTED, row.tolist(), strict=True))
    return {tier: counted[tier] for tier in _TIERS}, counted["absent"], counted["unresolved"]


def store_stats(
    tables: Sequence[TableSpec],
    overlay_tables: Sequence[OverlayTable],
    cache: DramCache,
    *,
    overlay_rows: int,
    base_rows: Sequence[int],
    held: Sequence[Held],
    ssd_bytes: int,
    dropped: int,
) -> StoreStats:
    """Returns the present sizes, with counts of lookups left at 0.

    base_rows: by table, used for those that DRAM does not hold whole. dropped: the promotions dropped.
    """
    found: dict[str, TableStats] = {}
    for index, spec in enumerate(tables):
        overlay = overlay_tables[index]
        rows = {
            "hbm": sum(each.table_rows[index] for each in held),
            "overlay": overlay.size(),
            "dram": cache.tiers[index].size(),
            "ssd": cache.tiers[index].size() if cache.is_complete(index) else base_rows[index],
        }
        bytes_ = {
            "hbm": sum(each.table_bytes[index] for each in held),
            "overlay": overlay.memory_bytes(),
            "dram": cache.table_bytes(index),
        }
        found[spec.name] = TableStats({}, 0, 0, rows, bytes_, cache.promotions[index], cache.evictions(index))
    return StoreStats(
        {},
        0,
        0,
        {
            "hbm": sum(each.rows for each in held),
            "overlay": overlay_rows,
            "dram": sum(stats.rows["dram"] for stats in found.values()),
            "ssd": sum(stats.rows["ssd"] for stats in found.values()),
        },
        {
            "hbm": sum(each.bytes for each in held),
            "overlay": sum(stats.bytes["overlay"] for stats in found.values()),
            "dram": cache.memory_bytes(),
            "ssd": ssd_bytes,
        },
        sum(stats.promotions for stats in found.values()),
        dropped,
        sum(stats.evictions for stats in found.values()),
        sum(negative.size() for negative in cache.negative),
        found,
    )
