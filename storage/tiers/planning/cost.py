"""What a lookup costs on this machine: two straight lines, fitted to the lookups that were made.

Without its reads a lookup takes overhead + ids x dram, fitted over the ids of lookups. Its reads take latency + reads x
read, fitted over the distinct rows that lookups read.

How good the lines are is found by fitting them again without each block of lookups in a row (the jackknife; blocks,
because the times of neighbouring lookups go up and down together). Lines that the lookups do not determine are not
used: `doubt` says what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

# Lookups of a block: it doubles, two blocks becoming one, until it is as large as this; then the oldest block goes.
_MOST_BLOCKS = 16
_MERGED_BLOCKS = 64
_FIRST_BLOCK, _LAST_BLOCK = 16, 512
# What a line needs: lookups that were timed, and of x a standard deviation of a tenth of its mean.
_LEAST_LOOKUPS = 64
_LEAST_SPREAD = 0.01
_SIGMAS = 2.0

# The first five of a `CostModel`.
Numbers = tuple[float, float, float, float, float]


class LineFit:
    """Least squares of y over x, from running sums; one thread adds. Neither end of the line goes below zero."""

    __slots__ = ("count", "x", "xx", "xy", "y")

    def __init__(self) -> None:
        self.count = self.x = self.xx = self.y = self.xy = 0.0

    def add(self, x: float, y: float) -> None:
        """Takes in a point."""
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

    @property
    def is_spread(self) -> bool:
        """Whether the x differ enough for a slope; else it would be noise."""
        return self.count * self.xx - self.x * self.x > self.x * self.x * _LEAST_SPREAD

    def line(self) -> tuple[float, float]:
        """Intercept and slope, both 0 or more; (0, mean y / mean x) when all x are alike."""
        if self.count == 0 or self.x == 0:
            return (self.y / self.count if self.count else 0.0), 0.0
        if not self.is_spread:
            return 0.0, self.y / self.x
        slope = (self.count * self.xy - self.x * self.y) / (self.count * self.xx - self.x * self.x)
        intercept = (self.y - slope * self.x) / self.count
        if slope < 0:
            return self.y / self.count, 0.0
        if intercept < 0:
            return 0.0, self.xy / self.xx
        return intercept, slope


@dataclass(frozen=True)
class CostModel:
    """Microseconds: overhead_us of a lookup, dram_us an id, latency_us of a lookup that reads, read_us a row read.

    reads_per_miss: distinct rows read for each id that DRAM did not have, 1 or less. without: the same five numbers,
    fitted without each block of lookups. doubt: why times at other hit rates cannot be told, "" where they can;
    ids_doubt: why those of lookups of other sizes cannot.
    """

    overhead_us: float
    dram_us: float
    latency_us: float
    read_us: float
    reads_per_miss: float = 1.0
    without: tuple[Numbers, ...] = ()
    doubt: str = ""
    ids_doubt: str = ""

    def lookup_ms(self, ids: float, hit_rate: float) -> float:
        """Milliseconds of a lookup of so many ids, of which this share is in DRAM."""
        misses = ids * (1 - hit_rate)
        reads = misses * self.reads_per_miss
        # With few misses many a lookup has none, and waits for nothing.
        waits = -math.expm1(-misses)
        return (self.overhead_us + ids * self.dram_us + waits * self.latency_us + reads * self.read_us) / 1000

    def error_ms(self, ids: float, hit_rate: float) -> float:
        """Two standard errors of `lookup_ms`, by the blocks; 0 without any."""
        if len(self.without) < 2:
            return 0.0
        times = np.array([CostModel(*each).lookup_ms(ids, hit_rate) for each in self.without])
        return _SIGMAS * float(np.sqrt((len(times) - 1) / len(times) * ((times - times.mean()) ** 2).sum()))


@dataclass
class CostBlock:
    """Lookups in a row. lookups: ids -> ns without the reads. reads: distinct rows read -> ns."""

    lookups: LineFit = field(default_factory=LineFit)
    reads: LineFit = field(default_factory=LineFit)
    missed: float = 0.0  # occurrences of ids that were read for, beside `rows_read` distinct ones
    rows_read: float = 0.0

    def merge(self, other: CostBlock) -> None:
        """Takes in another block's lookups."""
        self.lookups.merge(other.lookups)
        self.reads.merge(other.reads)
        self.missed += other.missed
        self.rows_read += other.rows_read

    def numbers(self) -> Numbers:
        """The first five of a `CostModel`."""
        overhead, dram = self.lookups.line()
        latency, read = self.reads.line()
        share = min(1.0, self.rows_read / self.missed) if self.missed else 1.0
        return overhead / 1000, dram / 1000, latency / 1000, read / 1000, share


class LookupCosts:
    """What one session measured, in blocks of lookups in a row, the oldest first; one thread adds, any reads."""

    def __init__(self) -> None:
        self.blocks: list[CostBlock] = [CostBlock()]
        self._size = _FIRST_BLOCK

    def add(self, ids: int, ns: int, reads: int, reads_ns: int, missed: int) -> None:
        """Notes one lookup of `ids` ids, `ns` in all, of which `reads_ns` went to reading `reads` rows."""
        block = self.blocks[-1]
        if block.lookups.count >= self._size:
            block = self._next()
        block.lookups.add(ids, ns - reads_ns)
        if reads:
            block.reads.add(reads, reads_ns)
            block.missed += missed
            block.rows_read += reads

    def merge(self, other: LookupCosts) -> None:
        """Takes in another session's blocks, beside its own."""
        found = [block for block in (*self.blocks, *other.blocks) if block.lookups.count] or [CostBlock()]
        self.blocks = found if len(found) <= _MERGED_BLOCKS else _pairs(found)

    @property
    def count(self) -> float:
        """Lookups that are counted."""
        return sum(block.lookups.count for block in self.blocks)

    def mean_ms(self) -> float:
        """Mean milliseconds of a lookup, reads included; 0 without one."""
        total = _together(self.blocks)
        return (total.lookups.y + total.reads.y) / total.lookups.count / 1e6 if total.lookups.count else 0.0

    def mean_ids(self) -> float:
        """Mean number of ids of a lookup."""
        total = _together(self.blocks).lookups
        return total.x / total.count if total.count else 0.0

    def model(self) -> CostModel | None:
        """The lines; None before the first lookup."""
        total = _together(self.blocks)
        if total.lookups.count == 0:
            return None
        blocks = _merged(self.blocks)
        without = tuple(
            _together([block for other, block in enumerate(blocks) if other != left]).numbers()
            for left in range(len(blocks))
            if len(blocks) > 1
        )
        ids_doubt = "" if total.lookups.is_spread else "all lookups had nearly the same number of ids"
        return CostModel(*total.numbers(), without, _doubt(total, without), ids_doubt)

    def _next(self) -> CostBlock:
        if len(self.blocks) >= _MOST_BLOCKS:
            if self._size < _LAST_BLOCK:
                self._size *= 2
                self.blocks = _pairs(self.blocks)
            else:
                self.blocks = self.blocks[1:]
        block = CostBlock()
        self.blocks = [*self.blocks, block]  # another list: others may be reading the one before
        return block


def _doubt(total: CostBlock, without: Sequence[Numbers]) -> str:
    """What lookups lack for telling what a row that is read costs; "" for nothing."""
    if total.lookups.count < _LEAST_LOOKUPS or len(without) < 2:
        return f"only {total.lookups.count:,.0f} lookups were timed, {_LEAST_LOOKUPS} are needed"
    if total.reads.count < _LEAST_LOOKUPS / 2:
        return f"only {total.reads.count:,.0f} lookups read rows from SSD, {_LEAST_LOOKUPS // 2} are needed"
    if not total.reads.is_spread:
        rows = total.reads.x / total.reads.count
        return f"all lookups read nearly the same number of rows from SSD, some {rows:,.0f}"
    slopes = np.array([each[3] for each in without])
    error = float(np.sqrt((len(slopes) - 1) / len(slopes) * ((slopes - slopes.mean()) ** 2).sum()))
    if total.numbers()[3] <= _SIGMAS * error:
        return "the times of lookups that read more rows are not clearly longer"
    return ""


def _together(blocks: Sequence[CostBlock]) -> CostBlock:
    total = CostBlock()
    for block in blocks:
        total.merge(block)
    return total


def _pairs(blocks: Sequence[CostBlock]) -> list[CostBlock]:
    return [_together(blocks[start : start + 2]) for start in range(0, len(blocks), 2)]


def _merged(blocks: Sequence[CostBlock]) -> list[CostBlock]:
    """At most 16 blocks, neighbours put together; a last one that is hardly begun goes with the one before."""
    found = [block for block in blocks if block.lookups.count]
    while len(found) > _MOST_BLOCKS:
        found = _pairs(found)
    if len(found) > 1 and found[-1].lookups.count < found[0].lookups.count / 2:
        found[-2:] = [_together(found[-2:])]
    return found
