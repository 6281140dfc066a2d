"""Gathers the figures of a table in one pass over its rows, in memory that does not grow with them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emberline.inspection.histogram import Histogram
from emberline.inspection.source import Piece, TableFacts, TableSource

# Called with rows done and rows in all, more or less.
Progress = Callable[[int, int], None]

# Counts and ages to 8192 are exact, beyond that to a four-thousandth; norms to a hundredth.
_COUNT_BITS = 12
_NORM_BITS = 7
# Bytes of DRAM that a row takes in training beside its values: count, stamp and tick, and its place in an index of 12
# bytes an entry that is between 7/16 and 7/8 full.
TRAINING_ROW_BYTES = 12 + 20
# An id without a row lies in two such indexes: its count, and when that changed.
WAITING_BYTES = 2 * 20


@dataclass(frozen=True)
class SampleRow:
    """One row of a table, for display."""

    id: int
    count: int
    stamp: int | None
    tick: int | None
    norm: float
    #: The first values of the row.
    values: tuple[float, ...]


@dataclass(frozen=True)
class TableFigures:
    """Holds what one pass over a table gives."""

    facts: TableFacts
    rows: int
    smallest_id: int | None
    largest_id: int | None
    #: Occurrences of ids with a row.
    counts: Histogram
    #: Occurrences of ids that wait for a row.
    waiting_counts: Histogram
    #: L2 norms of rows with finite values.
    norms: Histogram
    #: How long ago rows were used last, by the unit: "publishes", "ticks", "stamps".
    ages: dict[str, Histogram]
    #: Rows of zeros only.
    zero_rows: int
    #: Rows, the former included, whose norm is below `near_zero`.
    near_zero_rows: int
    near_zero: float
    #: Rows with a value that is NaN or infinite.
    not_finite_rows: int
    hottest: tuple[SampleRow, ...]
    sample: tuple[SampleRow, ...]

    @property
    def uses(self) -> int:
        """Occurrences of ids with a row."""
        return self.counts.uses

    @property
    def waiting(self) -> int:
        """Ids that were seen and have no row."""
        return self.waiting_counts.rows

    @property
    def row_bytes(self) -> int:
        """Bytes that one row takes in all: values, optimizer values, index."""
        spec, slots = self.facts.spec, self.facts.slots
        return spec.row_bytes + 4 * slots + (TRAINING_ROW_BYTES if self.facts.history else 9)

    def bytes_of(self) -> dict[str, int]:
        """Returns bytes by what takes them: in memory for a run (index and waiting are estimates), in files for a
        version.
        """
        spec, rows = self.facts.spec, self.rows
        if self.facts.history is None:
            return {"values": rows * spec.row_bytes, "ids and frequencies": rows * 9}
        return {
            "values": rows * spec.row_bytes,
            "optimizer values": rows * 4 * self.facts.slots,
            "index and counters": rows * TRAINING_ROW_BYTES,
            "waiting ids": self.waiting * WAITING_BYTES,
        }


class _Best:
    """Keeps the rows with the largest keys, of equal ones the first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: list[tuple[int, int, SampleRow]] = []

    def add(self, keys: NDArray[Any], piece: Piece, norms: NDArray[Any]) -> None:
        """Offers the rows of a piece. keys: (N,)."""
        if self._size == 0:
            return
        size = min(self._size, len(keys))
        # The size-th largest key bounds what can be kept; of equal ones the first are.
        least = np.partition(keys, len(keys) - size)[len(keys) - size]
        if len(self._kept) == self._size:
            least = max(least, keys.dtype.type(self._kept[0][0] + 1))
        above, equal = np.flatnonzero(keys > least), np.flatnonzero(keys == least)[:size]
        for place in (*above.tolist(), *equal.tolist()):
            entry = (int(keys[place]), -int(piece.ids[place]), _row(piece, norms, place))
            if len(self._kept) < self._size:
                heapq.heappush(self._kept, entry)
            elif entry[:2] > self._kept[0][:2]:
                heapq.heapreplace(self._kept, entry)

    def rows(self) -> list[SampleRow]:
        """Returns the rows, those of the largest keys first."""
        return [row for *_, row in sorted(self._kept, key=lambda entry: entry[:2], reverse=True)]


def _row(piece: Piece, norms: NDArray[Any], place: int) -> SampleRow:
    return SampleRow(
        int(piece.ids[place]),
        int(piece.counts[place]),
        None if piece.stamps is None else int(piece.stamps[place]),
        None if piece.ticks is None else int(piece.ticks[place]),
        float(norms[place]),
        tuple(float(value) for value in piece.rows[place, :4]),
    )


def scattered(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns keys (N,) from 0 on that have nothing to do with the order of the ids: SplitMix64's finaliser, halved."""
    mixed = ids.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(1)).view(np.int64)


def row_norms(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns the L2 norms (N,) of rows (N, D), summed in float64."""
    wide = rows.astype(np.float64)
    squares: NDArray[np.float64] = np.einsum("nd,nd->n", wide, wide)
    return np.sqrt(squares)


class _Gathering:
    def __init__(self, facts: TableFacts, near_zero: float, hottest: int, sample: int) -> None:
        self.facts = facts
        self.near_zero = near_zero
        self.counts, self.waiting = Histogram(_COUNT_BITS), Histogram(_COUNT_BITS)
        self.norms = Histogram(_NORM_BITS)
        self.ages: dict[str, Histogram] = {}
        self.hottest, self.sample = _Best(hottest), _Best(sample)
        self.rows = self.zero = self.near = self.not_finite = 0
        self.smallest: int | None = None
        self.largest: int | None = None

    def add(self, piece: Piece) -> None:
        self.rows += len(piece)
        if self.smallest is None:
            self.smallest = int(piece.ids[0])
        self.largest = int(piece.ids[-1])
        norms = row_norms(piece.rows)
        finite = np.isfinite(norms)
        self.not_finite += int(np.count_nonzero(~finite))
        self.zero += int(np.count_nonzero(norms == 0))
        self.near += int(np.count_nonzero(norms < self.near_zero))
        self.norms.add(norms[finite], piece.counts[finite])
        self.counts.add(piece.counts, piece.counts)
        self._add_ages(piece)
        self.hottest.add(piece.counts, piece, norms)
        self.sample.add(scattered(piece.ids), piece, norms)

    def _add_ages(self, piece: Piece) -> None:
        history = self.facts.history
        if history is None or piece.stamps is None or piece.ticks is None:
            return
        stamps, ticks = piece.stamps.astype(np.int64), piece.ticks.astype(np.int64)
        found = {"stamps": np.maximum(0, history.stamp - stamps)}
        if history.publishes:
            found["publishes"] = len(history.publishes) - np.searchsorted(np.array(history.publishes), stamps)
        if history.tick > 1:
            found["ticks"] = history.tick - ticks
        for unit, ages in found.items():
            self.ages.setdefault(unit, Histogram(_COUNT_BITS)).add(ages, piece.counts)


def gather_figures(
    source: TableSource, *, near_zero: float = 1e-3, hottest: int = 5, sample: int = 5, progress: Progress | None = None
) -> TableFigures:
    """Reads a table once and returns its figures.

    near_zero: rows whose L2 norm is below count as near zero. hottest, sample: numbers of rows to list, those whose ids
    were used most and some by chance, the same ones each time. Raises what the source raises.
    """
    total, done = source.total, 0
    gathering = _Gathering(source.facts, near_zero, hottest, sample)
    for piece in source.pieces():
        gathering.add(piece)
        done += len(piece)
        if progress is not None:
            progress(done, max(done, total))
    for _, counts in source.waiting():
        gathering.waiting.add(counts, counts)
    if progress is not None:
        progress(done, done)
    return TableFigures(
        facts=source.facts,
        rows=gathering.rows,
        smallest_id=gathering.smallest,
        largest_id=gathering.largest,
        counts=gathering.counts,
        waiting_counts=gathering.waiting,
        norms=gathering.norms,
        ages=gathering.ages,
        zero_rows=gathering.zero,
        near_zero_rows=gathering.near,
        near_zero=near_zero,
        not_finite_rows=gathering.not_finite,
        hottest=tuple(gathering.hottest.rows()),
        sample=tuple(sorted(gathering.sample.rows(), key=lambda row: row.id)),
    )
