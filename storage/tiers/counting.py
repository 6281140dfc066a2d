"""What lookups count: occurrences of ids by where their rows came from, in all and by table, and the time they took."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field

import numpy as np

from storage.tiers.planning.cost import LookupCosts

# Columns of what is counted by table. A GPU's hits stand behind what a lookup on the host counts.
COUNTED = ("dram", "ssd", "absent", "unresolved", "overlay", "hbm")
HBM = COUNTED.index("hbm")


@dataclass
class LookupCounts:
    """Occurrences of ids by where their rows came from."""

    dram: int = 0
    ssd: int = 0
    absent: int = 0
    unresolved: int = 0
    overlay: int = 0
    hbm: int = 0

    def add(self, other: LookupCounts) -> None:
        """Adds what another one counted."""
        self.dram += other.dram
        self.ssd += other.ssd
        self.absent += other.absent
        self.unresolved += other.unresolved
        self.overlay += other.overlay
        self.hbm += other.hbm


def host_counts(native: np.ndarray) -> np.ndarray:
    """(T, 6) as in COUNTED, from the (T, 5) that a lookup on the host gives."""
    counted = np.zeros((len(native), len(COUNTED)), np.uint64)
    counted[:, :HBM] = native
    return counted


@dataclass
class LookupTotals:
    """Of one session, or of several. by_table: (T, 6) uint64, columns as in COUNTED. One thread adds, any reads."""

    by_table: np.ndarray
    costs: LookupCosts = field(default_factory=LookupCosts)

    @classmethod
    def of(cls, tables: int) -> LookupTotals:
        """Zeros for a store of so many tables."""
        return cls(np.zeros((tables, len(COUNTED)), np.uint64))

    def add(self, counts: LookupCounts, by_table: np.ndarray, ns: int, reads: int, reads_ns: int) -> None:
        """Notes one lookup. ns: its time in all; reads_ns: what of it went to reading `reads` distinct rows."""
        self.by_table += by_table
        self.costs.add(sum(astuple(counts)), ns, reads, reads_ns, counts.ssd + counts.unresolved)

    def merge(self, other: LookupTotals) -> None:
        """Adds what another session noted."""
        self.by_table += other.by_table
        self.costs.merge(other.costs)

    def counts(self) -> LookupCounts:
        """Over all tables."""
        return LookupCounts(*(int(count) for count in self.by_table.sum(0)))
