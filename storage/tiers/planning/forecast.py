"""Forecasts what another DRAM budget would give: hit rates by miss-ratio curves, lookup times by measured costs.

A slab holds the rows of one size; its curve gives the share of its lookups that so many rows would answer. Bytes are
split between slabs to bring the most hits: each curve is replaced by its concave hull (the least concave curve above
it), whose pieces are taken steepest first. That split is optimal for concave curves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from storage.errors import InvalidInput
from storage.tiers.planning.cost import CostModel
from storage.tiers.planning.use_codes import uses_of_codes

_SIGMAS = 2.0
# How far a real cache differs from its curve, apart from chance: measured, not derived (docs/store.md).
_LEFT_OUT = 0.01


@dataclass(frozen=True)
class SlabCurve:
    """The miss-ratio curve of the tables of one row size."""

    tables: tuple[str, ...]
    row_bytes: int
    #: The bytes of DRAM that a row takes, index included.
    row_cost: float
    #: The rows of all its tables.
    rows: int
    #: The ids with a row that were looked up in it. Only the ratio to other slabs' numbers matters.
    lookups: float
    #: (k,) numbers of rows, ascending from 0.
    curve_rows: np.ndarray
    #: (k,) the share of the lookups found at so many rows, ascending, interpolated linearly.
    curve_hits: np.ndarray
    #: (p, k) the same by each part of the sample alone; their spread shows how accurate the curve is.
    parts: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    #: (k,) the share that no cache of so many rows can exceed; None when it is not known.
    most_hits: np.ndarray | None = None

    @property
    def whole_bytes(self) -> int:
        """The bytes that all of its rows would take."""
        return int(np.ceil(self.rows * self.row_cost))

    def hit_rate(self, dram_bytes: float) -> float:
        """Returns the share of its lookups that so many bytes would answer."""
        return self._at(dram_bytes, self.curve_hits)

    def part_hit_rates(self, dram_bytes: float) -> list[float]:
        """Returns the same share by each part of the sample."""
        return [self._at(dram_bytes, part) for part in self.parts]

    def most_hit_rate(self, dram_bytes: float) -> float:
        """Returns the hit rate that no cache of so many bytes can exceed; 1 when that is not known."""
        return 1.0 if self.most_hits is None else self._at(dram_bytes, self.most_hits)

    def _at(self, dram_bytes: float, hits: np.ndarray) -> float:
        if len(self.curve_rows) == 0:
            return 0.0
        return float(np.interp(dram_bytes / self.row_cost, self.curve_rows, hits))

    def hull(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the bytes and hits (lookups found) of the corners of the concave hull, from (0, 0) on."""
        points = [(0.0, 0.0)]
        for bytes_, hits in zip(
            (self.curve_rows * self.row_cost).tolist(), (self.curve_hits * self.lookups).tolist(), strict=True
        ):
            if bytes_ <= points[-1][0]:
                continue
            while len(points) > 1 and _slope(points[-2], points[-1]) <= _slope(points[-1], (bytes_, hits)):
                points.pop()
            points.append((bytes_, hits))
        return np.array([p[0] for p in points]), np.array([p[1] for p in points])


@dataclass(frozen=True)
class Forecast:
    """The curves of all slabs of a store, which give the hit rate of any budget."""

    slabs: tuple[SlabCurve, ...]
    #: The hit rates of consecutive periods of the traffic at the present budget.
    windows: tuple[float, ...] = ()

    @property
    def whole_bytes(self) -> int:
        """The bytes that all rows would take."""
        return sum(slab.whole_bytes for slab in self.slabs)

    def split(self, dram_bytes: float) -> list[float]:
        """Returns the bytes of each slab, in order, that give the most hits; bytes that bring none go by need."""
        shares = [0.0] * len(self.slabs)
        left = float(dram_bytes)
        pieces: list[tuple[float, int, float]] = []
        for index, slab in enumerate(self.slabs):
            bytes_, hits = slab.hull()
            for width, gain in zip(np.diff(bytes_).tolist(), np.diff(hits).tolist(), strict=True):
                if gain > 0:
                    pieces.append((gain / width, index, width))
        # Steepest first. The pieces of one slab come in their order, because the hull is concave.
        for _, index, width in sorted(pieces, key=lambda piece: -piece[0]):
            taken = min(left, width)
            shares[index] += taken
            left -= taken
        wanting = [max(0.0, slab.whole_bytes - share) for slab, share in zip(self.slabs, shares, strict=True)]
        total = sum(wanting)
        if left > 0 and total > 0:
            part = min(1.0, left / total)
            shares = [share + want * part for share, want in zip(shares, wanting, strict=True)]
        return shares

    def hit_rate(self, dram_bytes: float) -> float:
        """Returns the share of all lookups that a budget would answer, split as `split` does."""
        return self.hit_rate_of(self.split(dram_bytes))

    def hit_rate_of(self, shares: Sequence[float]) -> float:
        """Returns the share of all lookups that DRAM would answer with so many bytes for each slab."""
        lookups = sum(slab.lookups for slab in self.slabs)
        hits = sum(slab.lookups * slab.hit_rate(share) for slab, share in zip(self.slabs, shares, strict=True))
        return hits / lookups if lookups else 0.0

    def hit_range_of(self, shares: Sequence[float]) -> tuple[float, float]:
        """Returns the range of hit rates expected of similar traffic, for so many bytes of each slab.

        The range is two standard errors each way, of the sample (by the spread of its parts) and of the traffic (by the
        spread of its periods), and a margin for what the curve leaves out of how a cache works.
        """
        rate = self.hit_rate_of(shares)
        lookups = sum(slab.lookups for slab in self.slabs)
        if lookups == 0 or all(share >= slab.whole_bytes for slab, share in zip(self.slabs, shares, strict=True)):
            return rate, rate
        variance = float(np.var(self.windows, ddof=1)) if len(self.windows) > 1 else 0.0
        most = 0.0
        for slab, share in zip(self.slabs, shares, strict=True):
            weight = slab.lookups / lookups
            parts = slab.part_hit_rates(share)
            if len(parts) > 1:
                variance += weight**2 * float(np.var(parts, ddof=1)) / len(parts)
            most += weight * slab.most_hit_rate(share)
        half = _LEFT_OUT + _SIGMAS * variance**0.5
        return max(0.0, rate - half), min(1.0, most, rate + half)

    def smallest(self, target_ms: float, ids: float, costs: CostModel) -> int | None:
        """Returns the smallest budget, to 1/1000, with which a lookup of so many ids takes at most target_ms.

        None means that no budget is enough.
        """
        if target_ms <= 0 or ids <= 0:
            raise InvalidInput(f"target_ms is {target_ms} and ids is {ids}, expected more than 0")
        low, high = 0, self.whole_bytes
        if costs.lookup_ms(ids, self.hit_rate(high)) > target_ms:
            return None
        while high - low > max(1, high // 1000):
            middle = (low + high) // 2
            if costs.lookup_ms(ids, self.hit_rate(middle)) <= target_ms:
                high = middle
            else:
                low = middle
        return high


@dataclass(frozen=True)
class Measured:
    """The lookups that were measured."""

    #: The number of lookups.
    lookups: float
    #: The mean number of ids of a lookup.
    ids: float
    #: The mean milliseconds of a lookup.
    ms: float
    #: The share of the rows that DRAM had.
    hit_rate: float


@dataclass(frozen=True)
class StoreForecast:
    """The forecast of a store with its present budget, its costs and what was measured."""

    forecast: Forecast
    #: The present bytes of each slab.
    now: tuple[int, ...]
    #: None before the first lookup.
    costs: CostModel | None
    measured: Measured
    #: What the curves come from: "traffic", or "published", the use counts of the version.
    source: str = "published"


def curve_of_codes(histogram: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Returns the curve of a cache that holds the most used rows, judged by uses that did not select them.

    histogram: (256,) rows by their logarithmic use count. Returns rows (k,), hit rates (k,), the hit rates (k,) that
    the same uses would promise, and the uses in all. Each use is judged by the count of its row without it
    (leave-one-out, which is I. J. Good's estimate of what was not seen). Selecting and judging by the same uses would
    overestimate the hit rate of every size.
    """
    uses = uses_of_codes()
    widths = np.maximum(1.0, np.append(np.diff(uses), 1.0))  # the number of counts that a code stands for
    order = np.arange(255, -1, -1)
    rows = np.concatenate([[0], np.cumsum(histogram[order])])
    of_code = histogram[order] * (uses + (widths - 1) / 2)[order]
    most = np.concatenate([[0.0], np.cumsum(of_code)])
    # One row in w of a code that stands for w counts falls to the next lower code without one of its uses.
    kept_of_code = of_code * (1 - 1 / widths[order])
    judged = np.concatenate([[0.0], most[:-1] + kept_of_code])
    total = float(most[-1])
    kept = np.concatenate([[True], np.diff(rows) > 0])
    # A use that is left out of the least used rows finds no row: it is an absent id, not a lookup of a row.
    judged, most = judged[kept], most[kept]
    found = float(judged[-1])
    judged, most = (np.minimum(1.0, each / found) if found else np.zeros_like(each) for each in (judged, most))
    return rows[kept], judged, most, total


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])
