"""Turns a GPU's list of misses into rows and lists that its kernels put where they belong.

A list that goes to the GPU, in one pinned buffer, each part behind the one before (cuda/missed_rows.cuh):

    counts (2,) int64 | scatter (S, 2) int64 | add (A, 4) int64 | weights (W,) float32 | rows, float32

Letters: M misses, T tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serving.gpu.batch import PackedIds
from serving.gpu.features import GpuFeatures
from serving.gpu.staging import aligned
from storage.hbm.lookup_kernels import FEATURE_SHIFT
from storage.tiers.counting import LookupCounts
from storage.tiers.row_plan import RowPlan, WantedRows

_ALIGN = 16
_COUNTS_BYTES = 16
_SCATTER_WORDS, _ADD_WORDS = 2, 4
_NUMBERS = (1 << FEATURE_SHIFT) - 1


@dataclass(frozen=True)
class MissedList:
    """Layout of a list in the buffer; offsets and sizes in bytes."""

    #: Number of scatter entries.
    scatter: int
    #: Number of add entries.
    add: int
    #: Offset of the scatter entries.
    scatter_at: int
    #: Offset of the add entries.
    add_at: int
    #: Offset of the weights.
    weights_at: int
    #: Offset of the rows.
    rows_at: int
    #: Size of everything.
    size: int
    #: True if an entry of add has weights.
    has_weights: bool


@dataclass(frozen=True)
class MissedRows:
    """Result of a lookup of missed rows."""

    #: The list; None where the host has to look up the whole batch: more rows than there is room for.
    late: MissedList | None
    #: (T,) uint64, ids by table, those of a user once.
    missed: np.ndarray
    #: The ids, by table.
    wanted: list[tuple[int, np.ndarray]]
    #: Counts of these lookups, as in every lookup; likewise by_table.
    counts: LookupCounts
    by_table: np.ndarray | None


@dataclass(frozen=True)
class _Misses:
    """Misses sorted by table, then by feature, row and number."""

    #: Rank of each miss's feature.
    ranks: np.ndarray
    rows: np.ndarray
    numbers: np.ndarray
    #: Offset of each miss's row among the rows.
    at: np.ndarray
    floats: int


@dataclass(frozen=True)
class _Asked:
    """The ids to look up for some misses."""

    #: Begin and end of the ids of each table.
    parts: list[tuple[int, int]]
    #: The ids of each table.
    wanted: list[tuple[int, np.ndarray]]
    missed: np.ndarray
    #: (M,) index among all ids of the one that each miss asks for, None where each asks for one of its own.
    inverse: np.ndarray | None


class MissedLookup:
    """The lookup of missed rows of one session. buffer: pinned, 8-byte aligned. words: the packed batch, as int64."""

    def __init__(
        self, features: GpuFeatures, tables: int, plan: RowPlan, buffer: np.ndarray, packed: np.ndarray
    ) -> None:
        """Prepares the lookup. tables: number of tables of the store. packed: the buffer that batches are
        packed into.
        """
        everything = features.all
        gathered = len(features.gathered)
        # Features are ordered by table: the rows of a table then lie side by side.
        order = sorted(range(len(everything)), key=lambda number: everything[number].table)
        self._rank = np.empty(len(order), np.int64)
        self._rank[order] = np.arange(len(order))
        self._of_rank = np.array(order, np.int64)
        self._table = np.array([everything[number].table for number in order], np.int64)
        self._dim = np.array([everything[number].dim for number in order], np.int64)
        self._is_pooled = self._of_rank >= gathered
        # Numbers of the features as their own kernel counts them.
        self._local = np.where(self._is_pooled, self._of_rank - gathered, self._of_rank)
        self._is_weighted = np.array([everything[number].is_weighted for number in order], np.bool_)
        self._gathered = gathered
        self._tables = tables
        self._plan = plan
        self._buffer = buffer
        whole = packed[: len(packed) // 8 * 8]
        self._words, self._floats = whole.view(np.int64), whole.view(np.float32)

    def find(
        self, packed: PackedIds, gathered: np.ndarray, pooled: np.ndarray, timeout_s: float | None, mask: int
    ) -> MissedRows:
        """Finds missed rows. gathered, pooled: (M, 2) int64, the lists of misses. Raises StoreError."""
        misses = self._sorted(gathered, pooled)
        asked = self._asked(packed, misses)
        late = self._place(misses)
        if late is None:
            return MissedRows(None, asked.missed, asked.wanted, LookupCounts(), None)
        rows = self._buffer[late.rows_at : late.size].view(np.float32)
        if asked.inverse is None:
            places = _rows_of(rows, asked.parts, misses.at, self._dim[misses.ranks])
        else:
            places = [np.empty((len(ids), 1, self._plan.dim(table)), np.float32) for table, ids in asked.wanted]
        wanted = [WantedRows(table, ids, place) for (table, ids), place in zip(asked.wanted, places, strict=True)]
        found = self._plan.find(wanted, timeout_s, mask)
        is_found = np.concatenate([each[:, 0] for each in found.masks])
        if asked.inverse is not None:
            is_found = is_found[asked.inverse]
            self._spread(misses, rows, asked.parts, places, asked.inverse)
        late = self._put_lists(packed, misses, is_found, late)
        return MissedRows(late, asked.missed, asked.wanted, found.counts, found.by_table)

    def offer(self, packed: PackedIds, gathered: np.ndarray, pooled: np.ndarray) -> MissedRows:
        """Lists the ids as `find` does, without rows; for lists that have not room for all misses."""
        asked = self._asked(packed, self._sorted(gathered, pooled))
        return MissedRows(None, asked.missed, asked.wanted, LookupCounts(), None)

    def _asked(self, packed: PackedIds, misses: _Misses) -> _Asked:
        ranks, numbers = misses.ranks, misses.numbers
        inverse = None
        if packed.shares_rows:
            # A user's id may be missed in many rows.
            keys, inverse = np.unique(ranks << FEATURE_SHIFT | numbers, return_inverse=True)
            ranks, numbers = keys >> FEATURE_SHIFT, keys & _NUMBERS
        ids = self._words[packed.ids_at[self._of_rank[ranks]] + numbers]
        tables = self._table[ranks]
        missed = np.bincount(tables, minlength=self._tables).astype(np.uint64)
        parts = _runs(tables)
        return _Asked(parts, [(int(tables[start]), ids[start:end]) for start, end in parts], missed, inverse)

    def _sorted(self, gathered: np.ndarray, pooled: np.ndarray) -> _Misses:
        features = np.concatenate([gathered[:, 0] >> FEATURE_SHIFT, (pooled[:, 0] >> FEATURE_SHIFT) + self._gathered])
        numbers = np.concatenate([gathered[:, 0], pooled[:, 0]]) & _NUMBERS
        rows = np.concatenate([gathered[:, 1], pooled[:, 1]])
        ranks = self._rank[features]
        order = np.lexsort((numbers, ranks << FEATURE_SHIFT | rows))
        ranks = ranks[order]
        dims = self._dim[ranks]
        ends = dims.cumsum()
        return _Misses(ranks, rows[order], numbers[order], ends - dims, int(ends[-1]))

    def _place(self, misses: _Misses) -> MissedList | None:
        """Returns the layout for as many entries as there may be; None where the buffer is too small."""
        pooled = int(np.count_nonzero(self._is_pooled[misses.ranks]))
        scatter_at = _COUNTS_BYTES
        add_at = scatter_at + 8 * _SCATTER_WORDS * (len(misses.ranks) - pooled)
        weights_at = add_at + 8 * _ADD_WORDS * pooled
        rows_at = aligned(weights_at + 4 * pooled, _ALIGN)
        size = rows_at + 4 * misses.floats
        if size > len(self._buffer):
            return None
        return MissedList(0, 0, scatter_at, add_at, weights_at, rows_at, size, False)

    def _put_lists(self, packed: PackedIds, misses: _Misses, is_found: np.ndarray, late: MissedList) -> MissedList:
        is_pooled = self._is_pooled[misses.ranks]
        keys = self._local[misses.ranks] << FEATURE_SHIFT | misses.rows
        # Rows that are in no tier stay zeros, and not found.
        scattered = np.flatnonzero(~is_pooled & (is_found != 0))
        scatter = self._entries(late.scatter_at, len(scattered), _SCATTER_WORDS)
        scatter[:, 0], scatter[:, 1] = keys[scattered], misses.at[scattered]
        added = np.flatnonzero(is_pooled)
        starts = _starts(misses.ranks[added] << FEATURE_SHIFT | misses.rows[added])
        add = self._entries(late.add_at, len(starts), _ADD_WORDS)
        has_weights = False
        if len(starts):
            first = added[starts]
            add[:, 0], add[:, 1], add[:, 3] = keys[first], misses.at[first], starts
            add[:, 2] = np.diff(starts, append=len(added))
            weighted = self._is_weighted[misses.ranks[added]]
            has_weights = bool(weighted.any())
            if has_weights:
                weights = self._buffer[late.weights_at :][: 4 * len(added)].view(np.float32)
                some = added[weighted]
                places = packed.weights_at[self._of_rank[misses.ranks[some]]] + misses.numbers[some]
                weights[weighted] = self._floats[places]
        self._buffer[:_COUNTS_BYTES].view(np.int64)[:] = len(scattered), len(starts)
        return MissedList(
            len(scattered),
            len(starts),
            late.scatter_at,
            late.add_at,
            late.weights_at,
            late.rows_at,
            late.size,
            has_weights,
        )

    def _entries(self, at: int, count: int, words: int) -> np.ndarray:
        return self._buffer[at : at + 8 * words * count].view(np.int64).reshape(count, words)

    def _spread(
        self,
        misses: _Misses,
        rows: np.ndarray,
        parts: list[tuple[int, int]],
        places: list[np.ndarray],
        inverse: np.ndarray,
    ) -> None:
        """Copies each row that was looked up once to everyone who missed it. parts: those of the distinct rows."""
        own = _runs(self._table[misses.ranks])
        targets = _rows_of(rows, own, misses.at, self._dim[misses.ranks])
        for (start, end), (first, _), found, target in zip(own, parts, places, targets, strict=True):
            np.take(found, inverse[start:end] - first, axis=0, out=target, mode="clip")


def _starts(values: np.ndarray) -> np.ndarray:
    """Returns the start of each run of equal values."""
    is_first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=is_first[1:])
    return np.flatnonzero(is_first)


def _runs(values: np.ndarray) -> list[tuple[int, int]]:
    """Returns begin and end of each run of equal values, of which there are few."""
    starts = _starts(values).tolist()
    return list(zip(starts, [*starts[1:], len(values)], strict=True))


def _rows_of(rows: np.ndarray, parts: list[tuple[int, int]], at: np.ndarray, dims: np.ndarray) -> list[np.ndarray]:
    """Returns the rows of each run among all rows, (n, 1, dim)."""
    found = []
    for start, end in parts:
        begin, dim = int(at[start]), int(dims[start])
        found.append(rows[begin : begin + (end - start) * dim].reshape(end - start, 1, dim))
    return found
