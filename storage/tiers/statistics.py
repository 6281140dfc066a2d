"""What a store counted, and what lies where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storage._table import OverlayTable
from storage.specs import TableSpec
from storage.tiers.counting import COUNTED
from storage.tiers.dram_cache import DramCache
from storage.tiers.listeners import Held

_TIERS = ("hbm", "overlay", "dram", "ssd")


@dataclass(frozen=True)
class TableStats:
    """One table's part of `StoreStats`. promotions: rows that came into DRAM because they were asked for.

    evictions: rows that were let go for others or for a smaller budget; both of DRAM. bytes: of a cache that tables
    share, by their share of the rows; SSD is notified for all tables together only.
    """

    hits: dict[str, int]
    absent: int
    unresolved: int
    rows: dict[str, int]
    bytes: dict[str, int]
    promotions: int
    evictions: int


@dataclass(frozen=True)
class StoreStats:
    """Counts since the store was opened, and what lies where now. Keys of the dicts: "hbm", "overlay", "dram", "ssd".

    rows["hbm"] and bytes["hbm"] are those of all GPUs. rows["ssd"] is that of the base; after merges it is exact for
    tables that DRAM holds whole, and for the others the number that was loaded. tables: the same by table.
    promotions_dropped: reads that met a full promotion queue.
    negative_ids: absent ids that are remembered.
    """

    hits: dict[str, int]
    absent: int
    unresolved: int
    rows: dict[str, int]
    bytes: dict[str, int]
    promotions: int
    promotions_dropped: int
    evictions: int
    negative_ids: int
    tables: dict[str, TableStats]

    def counted(self, by_table: np.ndarray) -> StoreStats:
        """The same sizes with other counts: (T, 6) as in COUNTED, tables in the order of `tables`."""
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
    """What lies where now; nothing counted. base_rows: by table, as far as it is not whole in DRAM."""
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
