"""What another DRAM budget would give: hit rates by miss-ratio curves, and the time of a lookup by measured costs.

A slab holds the rows of one size, its curve says which share of its lookups would be found at so many rows. Bytes are
split between slabs where they bring the most hits: each curve is replaced by its concave hull (the least concave curve
above it), whose pieces are taken steepest first; that split is the best one for concave curves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storage.errors import InvalidInput
from storage.tiers.cost import CostModel
from storage.tiers.use_codes import uses_of_codes


@dataclass(frozen=True)
class SlabCurve:
    """The tables of one row size. row_cost: bytes of DRAM that a row takes, index included. rows: of all its tables.

    lookups: ids that were looked up in it; only the ratio to other slabs' counts. curve_rows: (k,) ascending from 0;
    curve_hits: (k,) the share of the lookups found at so many rows, ascending; straight in between.
    """

    tables: tuple[str, ...]
    row_bytes: int
    row_cost: float
    rows: int
    lookups: float
    curve_rows: np.ndarray
    curve_hits: np.ndarray

    @property
    def whole_bytes(self) -> int:
        """What all of its rows would take."""
        return int(np.ceil(self.rows * self.row_cost))

    def hit_rate(self, dram_bytes: float) -> float:
        """Share of its lookups that so many bytes would answer."""
        if len(self.curve_rows) == 0:
            return 0.0
        return float(np.interp(dram_bytes / self.row_cost, self.curve_rows, self.curve_hits))

    def hull(self) -> tuple[np.ndarray, np.ndarray]:
        """Bytes and hits (lookups found) of the corners of the concave hull, from (0, 0) on."""
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
    """All slabs of a store."""

    slabs: tuple[SlabCurve, ...]

    @property
    def whole_bytes(self) -> int:
        """What all rows would take."""
        return sum(slab.whole_bytes for slab in self.slabs)

    def split(self, dram_bytes: float) -> list[float]:
        """Bytes of each slab (in order) that give the most hits together; what brings none is given by need."""
        shares = [0.0] * len(self.slabs)
        left = float(dram_bytes)
        pieces: list[tuple[float, int, float]] = []
        for index, slab in enumerate(self.slabs):
            bytes_, hits = slab.hull()
            for width, gain in zip(np.diff(bytes_).tolist(), np.diff(hits).tolist(), strict=True):
                if gain > 0:
                    pieces.append((gain / width, index, width))
        # Steepest first: those of one slab come in their order, because the hull is concave.
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
        """Share of all lookups that a budget would answer, split as `split` does."""
        return self.hit_rate_of(self.split(dram_bytes))

    def hit_rate_of(self, shares: Sequence[float]) -> float:
        """Share of all lookups that DRAM would answer with so many bytes for each slab."""
        lookups = sum(slab.lookups for slab in self.slabs)
        hits = sum(slab.lookups * slab.hit_rate(share) for slab, share in zip(self.slabs, shares, strict=True))
        return hits / lookups if lookups else 0.0

    def smallest(self, target_ms: float, ids: float, costs: CostModel) -> int | None:
        """The smallest budget, to 1/1000, with which a lookup of so many ids takes target_ms; None: not even all."""
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


def curve_of_codes(histogram: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """The curve of a cache that always holds the most used rows.

    histogram: (256,) rows by their logarithmic use count. Returns rows (k,), hit rates (k,), and the uses in all.
    """
    order = np.arange(255, -1, -1)
    rows = np.concatenate([[0], np.cumsum(histogram[order])])
    uses = np.concatenate([[0.0], np.cumsum(histogram[order] * uses_of_codes()[order])])
    total = float(uses[-1])
    kept = np.concatenate([[True], np.diff(rows) > 0])
    hits = uses / total if total else np.zeros_like(uses)
    return rows[kept], hits[kept], total


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])
