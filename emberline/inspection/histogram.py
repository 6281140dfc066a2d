"""Histograms of numbers from 0 on in bounded memory: bins are the leading bits of their float32 form."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MANTISSA_BITS = 23
_INFINITY = 0x7F800000


class Bar(NamedTuple):
    """Rows whose value is in [low, high)."""

    low: float
    high: float
    rows: int
    #: Occurrences of their ids.
    uses: int


class Histogram:
    """Counts rows, and the occurrences of their ids, by a value from 0 on.

    bits: mantissa bits of a bin, so its width is 2^-bits of its value; whole numbers below 2^(bits + 1) have bins of
    their own. Takes 16 bytes a bin, 255 * 2^bits bins.
    """

    def __init__(self, bits: int) -> None:
        self._shift = _MANTISSA_BITS - bits
        bins = _INFINITY >> self._shift
        self._rows = np.zeros(bins, np.int64)
        self._uses = np.zeros(bins, np.int64)

    def add(self, values: NDArray[Any], uses: NDArray[Any]) -> None:
        """Adds rows by their values (n,), finite and 0 or more, and the occurrences (n,) of their ids."""
        if len(values) == 0:
            return
        places = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.int64) >> self._shift
        first = int(places.min())
        places -= first
        rows = np.bincount(places)
        self._rows[first : first + len(rows)] += rows
        # float64 is exact here: a piece has fewer than 2^21 rows of 32-bit counts.
        self._uses[first : first + len(rows)] += np.bincount(places, weights=uses).astype(np.int64)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self._rows.sum())

    @property
    def uses(self) -> int:
        """Occurrences of their ids."""
        return int(self._uses.sum())

    @property
    def largest(self) -> float:
        """Lower edge of the highest bin with a row; 0 without rows."""
        filled = np.flatnonzero(self._rows)
        return float(self._edges(filled[-1:])[0]) if len(filled) else 0.0

    def filled(self) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """Returns lower edges (k,) ascending of the bins that have rows, their rows (k,) and uses (k,)."""
        places = np.flatnonzero(self._rows)
        return self._edges(places), self._rows[places], self._uses[places]

    def quantile(self, share: float) -> float:
        """Returns the lower edge of the bin that the row after this share of all rows lies in; 0 without rows."""
        edges, rows, _ = self.filled()
        if len(edges) == 0:
            return 0.0
        return float(edges[np.searchsorted(np.cumsum(rows), max(1.0, np.ceil(share * rows.sum())))])

    def at_least(self, value: float) -> tuple[int, int]:
        """Returns rows and uses of the bins whose lower edge is this value or more."""
        edges, rows, uses = self.filled()
        first = int(np.searchsorted(edges, value))
        return int(rows[first:].sum()), int(uses[first:].sum())

    def below(self, value: float) -> tuple[int, int]:
        """Returns rows and uses of the bins whose lower edge is less than this value."""
        rows, uses = self.at_least(value)
        return self.rows - rows, self.uses - uses

    def doublings(self) -> list[Bar]:
        """Returns bars by powers of two, without gaps between the first and the last; 0 has a bar of its own."""
        edges, rows, uses = self.filled()
        if len(edges) == 0:
            return []
        exponents = np.frexp(edges)[1] - 1
        bars: list[Bar] = []
        if edges[0] == 0.0:
            bars.append(Bar(0.0, 0.0, int(rows[0]), int(uses[0])))
            edges, rows, uses, exponents = edges[1:], rows[1:], uses[1:], exponents[1:]
        if len(edges):
            for exponent in range(int(exponents[0]), int(exponents[-1]) + 1):
                here = exponents == exponent
                bars.append(Bar(2.0**exponent, 2.0 ** (exponent + 1), int(rows[here].sum()), int(uses[here].sum())))
        return bars

    def _edges(self, places: NDArray[np.intp]) -> NDArray[np.float64]:
        return (places.astype(np.uint32) << np.uint32(self._shift)).view(np.float32).astype(np.float64)
