"""What a store counts, and the plans that it counts for."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from storage.tiers.counting import COUNTED, LookupTotals

if TYPE_CHECKING:
    from storage.hbm.statistics import HbmStats
    from storage.specs import TableSpec
    from storage.tiers.dram_cache import DramCache
    from storage.tiers.lookup_plan import LookupPlan
    from storage.tiers.tiered import TieredStore

_TIERS = ("hbm", "overlay", "dram", "ssd")
# Columns of RecentLookups.counts that are rows: DRAM, SSD.
_FOUND = 2
# A window with fewer rows than this says nothing of how much traffic varies.
_LEAST_FOUND = 1000
_WINDOWS = 12


@dataclass(frozen=True)
class TableStats:
    """One table's part of `StoreStats`. promotions: rows that came into DRAM because they were asked for.

    evictions: rows that were let go for others or for a smaller budget; both of DRAM. bytes: of a cache that tables
    share, by their share of the rows; SSD is told for all tables together only.
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

    rows["hbm"] and bytes["hbm"] are those of all cards. rows["ssd"] is that of the base; after merges it is exact for
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


class PlanLedger:
    """The plans of a store, each with its own counts, so that lanes do not share a line of memory."""

    def __init__(self, tables: int) -> None:
        self.any = False  # whether there ever was one
        self.lock = threading.Lock()  # held while a plan is made, or all are given other tables
        self._plans: list[tuple[weakref.ref[LookupPlan], LookupTotals]] = []
        self._ended = LookupTotals.of(tables)

    def add(self, plan: LookupPlan, totals: LookupTotals) -> None:
        """Enters a plan; when it is gone, its counts stay. Under the lock."""
        self.any = True
        self._fold()
        self._plans.append((weakref.ref(plan), totals))

    def total(self) -> LookupTotals:
        """What all plans counted until now."""
        total = LookupTotals.of(len(self._ended.by_table))
        with self.lock:
            self._fold()
            for counted in (self._ended, *(counted for _, counted in self._plans)):
                total.merge(counted)
        return total

    def each(self) -> list[LookupPlan]:
        """The plans that there are. Under the lock."""
        return [plan for reference, _ in self._plans if (plan := reference()) is not None]

    def __len__(self) -> int:
        return len(self._plans)

    def _fold(self) -> None:
        alive: list[tuple[weakref.ref[LookupPlan], LookupTotals]] = []
        for reference, counted in self._plans:
            if reference() is None:
                self._ended.merge(counted)
            else:
                alive.append((reference, counted))
        self._plans = alive


class RecentLookups:
    """What lookups of the base found of late: every `fade` halves what was counted before it.

    windows: the hit rate between two fades, of the last of them in which enough was looked up.
    """

    def __init__(self, plans: PlanLedger) -> None:
        self._plans = plans
        self._faded = np.zeros(0)
        self._before = np.zeros(0)
        self.windows: deque[float] = deque(maxlen=_WINDOWS)

    def fade(self) -> None:
        """Begins another period."""
        now = self._counted()
        window = now - self._before if len(self._before) else now
        found = window[:, :_FOUND].sum()
        if found >= _LEAST_FOUND:
            self.windows.append(float(window[:, 0].sum() / found))
        self._faded = self.counts() / 2
        self._before = now

    def restart(self) -> None:
        """Forgets what was counted: another budget has other hits."""
        self._before = self._counted()
        self._faded = np.zeros_like(self._before)
        self.windows.clear()

    def counts(self) -> np.ndarray:
        """(T, 4) ids by where they were found: DRAM, SSD, absent, unresolved; those asked for last count most."""
        now = self._counted()
        return now if len(self._before) == 0 else now - self._before + self._faded

    def by_table(self) -> list[float]:
        """Ids that were looked up in the base, by table; those asked for last count most."""
        return [float(count) for count in self.counts().sum(1)]

    def _counted(self) -> np.ndarray:
        by_table = self._plans.total().by_table
        base = [COUNTED.index(name) for name in ("dram", "ssd", "absent", "unresolved")]
        return np.asarray(by_table[:, base], np.float64)


def store_stats(store: TieredStore, cache: DramCache, base_rows: Sequence[int], dropped: int) -> StoreStats:
    """What lies where now; nothing counted. base_rows: by table, as far as it is not whole in DRAM."""
    tables: dict[str, TableStats] = {}
    cards = [tier.stats() for tier in store.cards.tiers.values()]
    for index, spec in enumerate(store.tables):
        overlay = store.overlay_tables[index]
        rows = {
            "hbm": sum(card.tables[index].rows for card in cards),
            "overlay": overlay.size(),
            "dram": cache.tiers[index].size(),
            "ssd": cache.tiers[index].size() if cache.is_complete(index) else base_rows[index],
        }
        bytes_ = {
            "hbm": sum(_share(card, store.tables, index) for card in cards),
            "overlay": overlay.memory_bytes(),
            "dram": cache.table_bytes(index),
        }
        tables[spec.name] = TableStats({}, 0, 0, rows, bytes_, cache.promotions[index], cache.evictions(index))
    return StoreStats(
        {},
        0,
        0,
        {
            "hbm": sum(card.rows for card in cards),
            "overlay": sum(stats.rows for stats in store.overlay_stats().values()),
            "dram": sum(stats.rows["dram"] for stats in tables.values()),
            "ssd": sum(stats.rows["ssd"] for stats in tables.values()),
        },
        {
            "hbm": sum(card.device_bytes for card in cards),
            "overlay": sum(stats.bytes["overlay"] for stats in tables.values()),
            "dram": cache.memory_bytes(),
            "ssd": store.ssd.size_bytes(),
        },
        sum(stats.promotions for stats in tables.values()),
        dropped,
        sum(stats.evictions for stats in tables.values()),
        sum(negative.size() for negative in cache.negative),
        tables,
    )


def _share(card: HbmStats, tables: Sequence[TableSpec], index: int) -> int:
    """What of a card's memory is a table's, by the bytes of its rows there."""
    taken = [each.rows * spec.row_bytes for each, spec in zip(card.tables, tables, strict=True)]
    return card.device_bytes * taken[index] // (sum(taken) or 1)
