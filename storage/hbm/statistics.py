"""Counts the lookups of a GPU's cache, and reports what it holds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storage.hbm.replica import GpuSlab, Replica
from storage.hbm.visibility import View
from storage.specs import TableSpec
from storage.tiers.listeners import Held

_TOTALS = ("admitted", "rejected", "evicted")


@dataclass(frozen=True)
class HbmTableStats:
    """Figures of one table."""

    #: Rows on the GPU, for the base's snapshot.
    rows: int
    #: Occurrences of ids that were looked up.
    lookups: int
    #: Occurrences of ids that were not found.
    misses: int
    #: Rows that came in because they were asked for, or to fill the GPU.
    admitted: int


@dataclass(frozen=True)
class HbmStats:
    """Figures of one GPU."""

    #: Capacity for rows of all tables.
    capacity_rows: int
    #: Rows of all tables.
    rows: int
    #: Bytes of GPU memory in use.
    device_bytes: int
    #: Bytes of host memory in use.
    host_bytes: int
    #: Snapshots that it answers for beside the one of its base.
    differences: int
    admitted: int
    #: Offers that were not hot enough.
    rejected: int
    #: Rows that were evicted for others.
    evicted: int
    tables: tuple[HbmTableStats, ...]

    @property
    def snapshots(self) -> int:
        """Number of snapshots that it answers for, the base's included; 0 once the GPU was given up."""
        return 1 + self.differences if self.capacity_rows else 0


class TierCounts:
    """Holds counts by table (T,), since the tier was made. Thread-safe."""

    def __init__(self, tables: int) -> None:
        self.lookups = np.zeros(tables, np.uint64)
        self.misses = np.zeros(tables, np.uint64)
        self.admitted = np.zeros(tables, np.int64)
        self._new_lookups = np.zeros(tables, np.uint64)
        self._new_misses = np.zeros(tables, np.uint64)
        self._gone = dict.fromkeys(_TOTALS, 0)
        self._lock = threading.Lock()

    def let_go(self, replica: Replica) -> None:
        """Keeps the counts of a replica's caches before the replica is dropped."""
        with self._lock:
            for slab in replica.slabs:
                _add(self._gone, slab)

    def add(self, lookups: np.ndarray, misses: np.ndarray) -> None:
        """Adds one batch of this GPU's sessions."""
        with self._lock:
            self.lookups += lookups
            self.misses += misses

    def age(self, lookups: np.ndarray, misses: np.ndarray) -> None:
        """Adds one batch that this GPU's policy counts."""
        with self._lock:
            self._new_lookups += lookups
            self._new_misses += misses

    def passed(self, tables: Sequence[int]) -> tuple[int, int]:
        """Returns lookups and hits of some tables, as counted by `age`, since the last call for them."""
        of = list(tables)
        with self._lock:
            lookups, misses = int(self._new_lookups[of].sum()), int(self._new_misses[of].sum())
            self._new_lookups[of] = self._new_misses[of] = 0
        return lookups, lookups - misses

    def waiting(self, tables: Sequence[int]) -> int:
        """Returns lookups of some tables since the last `passed`."""
        of = list(tables)
        with self._lock:
            return int(self._new_lookups[of].sum())

    def stats(self, view: View | None) -> HbmStats:
        """Returns the figures, with those of a view; zeros where there is none."""
        with self._lock:
            lookups, misses, totals = self.lookups.tolist(), self.misses.tolist(), dict(self._gone)
        slabs = [] if view is None else view.replica.slabs
        rows = [0] * len(lookups)
        for slab in slabs:
            for table in slab.members:
                rows[table] = slab.cache.rows_of(table)
            _add(totals, slab)
        return HbmStats(
            sum(slab.cache.capacity_rows for slab in slabs),
            sum(slab.cache.size() for slab in slabs),
            0 if view is None else view.replica.device_bytes,
            0 if view is None else view.replica.host_bytes,
            0 if view is None else len(view.differences),
            totals["admitted"],
            totals["rejected"],
            totals["evicted"],
            tuple(
                HbmTableStats(rows[table], lookups[table], misses[table], int(self.admitted[table]))
                for table in range(len(lookups))
            ),
        )


def held_of(stats: Sequence[HbmStats], tables: Sequence[TableSpec]) -> Held:
    """Returns the totals of some GPUs."""
    return Held(
        sum(each.rows for each in stats),
        sum(each.device_bytes for each in stats),
        [sum(each.tables[index].rows for each in stats) for index in range(len(tables))],
        [sum(_share(each, tables, index) for each in stats) for index in range(len(tables))],
    )


def _share(stats: HbmStats, tables: Sequence[TableSpec], index: int) -> int:
    """Returns a table's share of a GPU's memory, by the bytes of its rows there."""
    taken = [each.rows * spec.row_bytes for each, spec in zip(stats.tables, tables, strict=True)]
    return stats.device_bytes * taken[index] // (sum(taken) or 1)


def _add(totals: dict[str, int], slab: GpuSlab) -> None:
    counted = slab.cache.stats()
    for name in totals:
        totals[name] += counted[name]
