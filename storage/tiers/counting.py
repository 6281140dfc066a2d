"""Counts occurrences of ids by where their rows came from, in all and by table, and the time that lookups took."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from storage.tiers.planning.cost import LookupCosts

# Columns of the counts by table. The hits of GPUs come last, after the columns that a lookup on the host counts.
COUNTED = ("dram", "ssd", "absent", "unresolved", "overlay", "hbm")
HBM = COUNTED.index("hbm")


@dataclass
class LookupCounts:
    """Counts the occurrences of ids by where their rows came from."""

    dram: int = 0
    ssd: int = 0
    absent: int = 0
    unresolved: int = 0
    overlay: int = 0
    hbm: int = 0
    #: How long the lookup waited for rows of the SSD.
    read_ns: int = field(default=0, compare=False)

    def total(self) -> int:
        """Returns the occurrences of ids, wherever their rows came from."""
        return self.dram + self.ssd + self.absent + self.unresolved + self.overlay + self.hbm

    def add(self, other: LookupCounts) -> None:
        """Adds the counts of another object."""
        self.dram += other.dram
        self.ssd += other.ssd
        self.absent += other.absent
        self.unresolved += other.unresolved
        self.overlay += other.overlay
        self.hbm += other.hbm
        self.read_ns += other.read_ns


@dataclass
class LookupTotals:
    """Sums the counts and times of one session, or of several. One thread adds; any thread reads."""

    #: (T, 6) uint64, with the columns of COUNTED.
    by_table: np.ndarray
    costs: LookupCosts = field(default_factory=LookupCosts)
    #: Lookups that waited for rows of the SSD, the distinct rows that they read, and the nanoseconds that they waited.
    reads: int = 0
    rows_read: int = 0
    read_ns: int = 0

    @classmethod
    def of(cls, tables: int) -> LookupTotals:
        """Makes zeros for a store of so many tables."""
        return cls(np.zeros((tables, len(COUNTED)), np.uint64))

    def add(self, counts: LookupCounts, by_table: np.ndarray, ns: int, reads: int, reads_ns: int) -> None:
        """Adds one lookup. ns: its time in all; reads_ns: the part of it spent reading `reads` distinct rows."""
        self.by_table += by_table
        self.costs.add(counts.total(), ns, reads, reads_ns, counts.ssd + counts.unresolved)
        if reads:
            self.reads += 1
            self.rows_read += reads
            self.read_ns += reads_ns

    def merge(self, other: LookupTotals) -> None:
        """Adds the totals of another session."""
        self.by_table += other.by_table
        self.costs.merge(other.costs)
        self.reads += other.reads
        self.rows_read += other.rows_read
        self.read_ns += other.read_ns

    def counts(self) -> LookupCounts:
        """Returns the counts over all tables."""
        return LookupCounts(*(int(count) for count in self.by_table.sum(0)))
