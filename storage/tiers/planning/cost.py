"""Models the cost of a lookup on this machine by two straight lines, fitted to the lookups that were made.

Without its reads a lookup takes overhead + ids x dram, fitted over the ids of lookups. Its reads take latency + reads x
read, fitted over the distinct rows that lookups read.

The error of the lines is estimated by fitting them again without each block of consecutive lookups (the jackknife;
blocks are used because the times of neighbouring lookups are correlated). Lines that the lookups do not determine are
not used: `doubt` says what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

# The lookups of a block double from _FIRST_BLOCK to _LAST_BLOCK, two blocks becoming one each time there are
# _MOST_BLOCKS; after that the oldest block is dropped.
_MOST_BLOCKS = 16
_MERGED_BLOCKS = 64
_FIRST_BLOCK, _LAST_BLOCK = 16, 512
# A line needs so many timed lookups, and a standard deviation of x of at least a tenth of its mean.
_LEAST_LOOKUPS = 64
_LEAST_SPREAD = 0.01
_SIGMAS = 2.0

# The first five fields of a `CostModel`.
Numbers = tuple[float, float, float, float, float]


class LineFit:
    """Fits y over x by least squares from running sums. Intercept and slope never go below zero. One thread adds."""

    __slots__ = ("count", "x", "xx", "xy", "y")

    def __init__(self) -> None:
        self.count = self.x = self.xx = self.y = self.xy = 0.0

    def add(self, x: float, y: float) -> None:
        """Adds a point."""
        self.count += 1
        self.x += x
        self.xx += x * x
        self.y += y
        self.xy += x * y

    def merge(self, other: LineFit) -> None:
        """Adds the points of another fit."""
        self.count += other.count
        self.x += other.x
        self.xx += other.xx
        self.y += other.y
        self.xy += other.xy

    @property
    def is_spread(self) -> bool:
        """True when the x differ enough to determine a slope; else it would be noise."""
        return self.count * self.xx - self.x * self.x > self.x * self.x * _LEAST_SPREAD

    def line(self) -> tuple[float, float]:
        """Returns intercept and slope, both 0 or more; (0, mean y / mean x) when all x are alike."""
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
    """The cost of a lookup as a function of its ids and its hit rate."""

    #: Microseconds that every lookup takes.
    overhead_us: float
    #: Microseconds for each id.
    dram_us: float
    #: Microseconds that a lookup waits when it reads from SSD.
    latency_us: float
    #: Microseconds for each row read.
    read_us: float
    #: The distinct rows read for each id that DRAM did not have, 1 or less.
    reads_per_miss: float = 1.0
    #: The same five numbers, fitted without each block of lookups.
    without: tuple[Numbers, ...] = ()
    #: The reason why times at other hit rates cannot be predicted; "" when they can.
    doubt: str = ""
    #: The reason why times of lookups of other sizes cannot be predicted; "" when they can.
    ids_doubt: str = ""

    def lookup_ms(self, ids: float, hit_rate: float) -> float:
        """Returns the milliseconds of a lookup of so many ids, of which this share is in DRAM."""
        misses = ids * (1 - hit_rate)
        reads = misses * self.reads_per_miss
        # With few misses on average, some lookups have none and do not wait.
        waits = -math.expm1(-misses)
        return (self.overhead_us + ids * self.dram_us + waits * self.latency_us + reads * self.read_us) / 1000

    def error_ms(self, ids: float, hit_rate: float) -> float:
        """Returns two standard errors of `lookup_ms`, by the blocks; 0 with fewer than two."""
        if len(self.without) < 2:
            return 0.0
        times = np.array([CostModel(*each).lookup_ms(ids, hit_rate) for each in self.without])
        return _SIGMAS * float(np.sqrt((len(times) - 1) / len(times) * ((times - times.mean()) ** 2).sum()))


@dataclass
class CostBlock:
    """The fits of consecutive lookups."""

    #: The nanoseconds of a lookup without its reads, over its ids.
    lookups: LineFit = field(default_factory=LineFit)
    #: The nanoseconds of a lookup's reads, over the distinct rows read.
    reads: LineFit = field(default_factory=LineFit)
    #: The occurrences of ids that rows were read for.
    missed: float = 0.0
    #: The distinct rows read for them.
    rows_read: float = 0.0

    def merge(self, other: CostBlock) -> None:
        """Adds the lookups of another block."""
        self.lookups.merge(other.lookups)
        self.reads.merge(other.reads)
        self.missed += other.missed
        self.rows_read += other.rows_read

    def numbers(self) -> Numbers:
        """Returns the first five fields of a `CostModel`."""
        overhead, dram = self.lookups.line()
        latency, read = self.reads.line()
        share = min(1.0, self.rows_read / self.missed) if self.missed else 1.0
        return overhead / 1000, dram / 1000, latency / 1000, read / 1000, share


class LookupCosts:
    """Collects the times of one session's lookups in blocks, the oldest first. One thread adds; any thread reads."""

    def __init__(self) -> None:
        self.blocks: list[CostBlock] = [CostBlock()]
        self._size = _FIRST_BLOCK

    def add(self, ids: int, ns: int, reads: int, reads_ns: int, missed: int) -> None:
        """Adds a lookup of `ids` ids that took `ns`, of which `reads_ns` were spent reading `reads` distinct rows.

        missed: the occurrences of ids that those rows were read for.
        """
        block = self.blocks[-1]
        if block.lookups.count >= self._size:
            block = self._next()
        block.lookups.add(ids, ns - reads_ns)
        if reads:
            block.reads.add(reads, reads_ns)
            block.missed += missed
            block.rows_read += reads

    def merge(self, other: LookupCosts) -> None:
        """Adds the blocks of another session to its own."""
        found = [block for block in (*self.blocks, *other.blocks) if block.lookups.count] or [CostBlock()]
        self.blocks = found if len(found) <= _MERGED_BLOCKS else _pairs(found)

    @property
    def count(self) -> float:
        """The number of lookups that the blocks hold."""
        return sum(block.lookups.count for block in self.blocks)

    def mean_ms(self) -> float:
        """Returns the mean milliseconds of a lookup, reads included; 0 without any lookup."""
        total = _together(self.blocks)
        return (total.lookups.y + total.reads.y) / total.lookups.count / 1e6 if total.lookups.count else 0.0

    def mean_ids(self) -> float:
        """Returns the mean number of ids of a lookup."""
        total = _together(self.blocks).lookups
        return total.x / total.count if total.count else 0.0

    def model(self) -> CostModel | None:
        """Returns the fitted model; None before the first lookup."""
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
        self.blocks = [*self.blocks, block]  # a new list, because other threads may be reading the old one
        return block


def _doubt(total: CostBlock, without: Sequence[Numbers]) -> str:
    """Returns what the lookups lack for predicting the cost of a row that is read; "" when they lack nothing."""
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
    """Merges neighbouring blocks until at most 16 are left; a last block that is small joins the one before it."""
    found = [block for block in blocks if block.lookups.count]
    while len(found) > _MOST_BLOCKS:
        found = _pairs(found)
    if len(found) > 1 and found[-1].lookups.count < found[0].lookups.count / 2:
        found[-2:] = [_together(found[-2:])]
    return found
