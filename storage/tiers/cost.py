"""What a lookup costs on this machine: two straight lines, fitted to the lookups that were made.

Without its reads a lookup takes overhead + ids x dram, fitted over the ids of lookups. Its reads take latency + reads x
read, fitted over the distinct rows that lookups read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# After so many points the older half of the weight goes: a machine is not the same all day.
_FADE = 8192


class LineFit:
    """Least squares of y over x, from running sums; one thread adds. Neither end of the line goes below zero."""

    __slots__ = ("count", "x", "xx", "xy", "y")

    def __init__(self) -> None:
        self.count = self.x = self.xx = self.y = self.xy = 0.0

    def add(self, x: float, y: float) -> None:
        """Takes in a point."""
        if self.count >= _FADE:
            self.count, self.x, self.xx, self.y, self.xy = (
                value / 2 for value in (self.count, self.x, self.xx, self.y, self.xy)
            )
        self.count += 1
        self.x += x
        self.xx += x * x
        self.y += y
        self.xy += x * y

    def merge(self, other: LineFit) -> None:
        """Takes in another one's points."""
        self.count += other.count
        self.x += other.x
        self.xx += other.xx
        self.y += other.y
        self.xy += other.xy

    def line(self) -> tuple[float, float]:
        """Intercept and slope, both 0 or more; (0, mean y / mean x) when all x are alike."""
        if self.count == 0 or self.x == 0:
            return (self.y / self.count if self.count else 0.0), 0.0
        spread = self.count * self.xx - self.x * self.x
        # Below a hundredth of the mean's square the points lie on one spot, and a slope through them is noise.
        if spread <= self.x * self.x / 100:
            return 0.0, self.y / self.x
        slope = (self.count * self.xy - self.x * self.y) / spread
        intercept = (self.y - slope * self.x) / self.count
        if slope < 0:
            return self.y / self.count, 0.0
        if intercept < 0:
            return 0.0, self.xy / self.xx
        return intercept, slope


@dataclass(frozen=True)
class CostModel:
    """Microseconds: overhead_us of a lookup, dram_us an id, latency_us of a lookup that reads, read_us a row read.

    reads_per_miss: distinct rows read for each id that DRAM did not have, 1 or less.
    """

    overhead_us: float
    dram_us: float
    latency_us: float
    read_us: float
    reads_per_miss: float = 1.0

    def lookup_ms(self, ids: float, hit_rate: float) -> float:
        """Milliseconds of a lookup of so many ids, of which this share is in DRAM."""
        misses = ids * (1 - hit_rate)
        reads = misses * self.reads_per_miss
        return (
            self.overhead_us + ids * self.dram_us + min(1.0, misses) * self.latency_us + reads * self.read_us
        ) / 1000


@dataclass
class LookupCosts:
    """What one lane measured. lookups: ids -> ns without the reads. reads: distinct rows read -> ns."""

    lookups: LineFit = field(default_factory=LineFit)
    reads: LineFit = field(default_factory=LineFit)
    missed: float = 0.0  # occurrences of ids that were read for, beside `rows_read` distinct ones
    rows_read: float = 0.0

    def add(self, ids: int, ns: int, reads: int, reads_ns: int, missed: int) -> None:
        """Notes one lookup of `ids` ids, `ns` in all, of which `reads_ns` went to reading `reads` rows."""
        self.lookups.add(ids, ns - reads_ns)
        if reads:
            self.reads.add(reads, reads_ns)
            self.missed += missed
            self.rows_read += reads

    def merge(self, other: LookupCosts) -> None:
        """Takes in another lane's."""
        self.lookups.merge(other.lookups)
        self.reads.merge(other.reads)
        self.missed += other.missed
        self.rows_read += other.rows_read

    def mean_ms(self) -> float:
        """Mean milliseconds of a lookup, reads included; 0 without one."""
        return (self.lookups.y + self.reads.y) / self.lookups.count / 1e6 if self.lookups.count else 0.0

    def mean_ids(self) -> float:
        """Mean number of ids of a lookup."""
        return self.lookups.x / self.lookups.count if self.lookups.count else 0.0

    def model(self) -> CostModel | None:
        """The lines; None before the first lookup. Without any read, reads cost nothing in it: say so to people."""
        if self.lookups.count == 0:
            return None
        overhead, dram = self.lookups.line()
        latency, read = self.reads.line()
        share = min(1.0, self.rows_read / self.missed) if self.missed else 1.0
        return CostModel(overhead / 1000, dram / 1000, latency / 1000, read / 1000, share)
