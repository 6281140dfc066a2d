"""A session looks up the ids of all features of a batch in one call, within a deadline.

A row comes from the newest overlay that the mask shows and that has it, else from the base: DRAM, then SSD. `merge`
explains why a lookup sees one snapshot while overlays move into the base.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from storage._table import Lookup, OverlayTable, RowSource
from storage.errors import InvalidInput, StoreError
from storage.features import Jagged
from storage.initializers import AbsentRows
from storage.specs import POOLINGS, LookupSpec, TableSpec
from storage.tiers.chains import ABSENT, FOUND, LATE, Chains, FellBack
from storage.tiers.cold_reads import ColdReads
from storage.tiers.counting import COUNTED, LookupCounts, LookupTotals
from storage.tiers.dram_cache import DramCache
from storage.tiers.overlays import Overlays, OverlayView
from storage.tiers.ssd.reads import RowRead

_BASE = 255
_UNRESOLVED = COUNTED.index("unresolved")
# The clock that times lookups. A benchmark on a shared machine replaces it by the processor time of its thread.
now_ns = time.monotonic_ns


@dataclass(frozen=True)
class LookupArrays:
    """The arrays that lookups of one batch size write to, one for each feature of a plan.

    A lookup that is given the same object again does not check its arrays again: the plan keeps those in tuples until
    it is given others. Those in lists it lets go after the lookup.
    """

    #: float32, (B, dim) when pooled, (B, length, dim) when not. What belongs to one bag is C-contiguous.
    outputs: Sequence[np.ndarray]
    #: uint8 (B, length) and C-contiguous, None when pooled.
    masks: Sequence[np.ndarray | None]


@dataclass(frozen=True)
class LookupResult:
    """The result of a lookup, with one entry for each feature, in the plan's order."""

    #: float32, (B, dim) when pooled, (B, length, dim) when not. Absent rows are what their feature or table says, zeros
    #: by default; unresolved rows are zeros.
    outputs: Sequence[np.ndarray]
    #: uint8 (B, length), 1 where a row was found; None when pooled.
    masks: Sequence[np.ndarray | None]
    #: int64 (B,), the number of ids used of each bag; None when pooled.
    lengths: tuple[np.ndarray | None, ...]
    counts: LookupCounts
    #: uint64 (T, 6), the counts of each table of the store, in the order of COUNTED.
    by_table: np.ndarray
    #: By number of the feature, what its ids without a row read; nothing for a feature whose ids all have rows.
    fallback: Mapping[int, FellBack] = field(default_factory=dict)


class PlannedStore(Protocol):
    """The part of a store that a plan uses."""

    tables: tuple[TableSpec, ...]
    overlays: Overlays
    overlay_tables: list[OverlayTable]
    cold_reads: ColdReads

    @property
    def dram_cache(self) -> DramCache:
        """The cache of the rows in DRAM. The first budget replaces it by another object."""


class LookupPlan:
    """Looks up the features that it was made for; `TieredStore.plan` makes one. Plans share the tables.

    Not thread-safe: scratch memory is reused, so one thread uses a plan at a time.
    """

    def __init__(
        self, store: PlannedStore, entries: Sequence[tuple[LookupSpec, int, int]], total: LookupTotals
    ) -> None:
        self._store = store
        self._entries = tuple(entries)
        self._chains = Chains(entries, store.tables)
        self._levels: dict[int, Lookup] = {}
        # What the chains of the lookup that runs read.
        self._fallback: Mapping[int, FellBack] = {}
        self._weighted = any(spec.pooling == "weighted" for spec, _, _ in entries)
        self._unpooled = [number for number, (spec, _, _) in enumerate(entries) if spec.pooling == "none"]
        #: What a bag of each feature becomes: (dim,) when pooled, (length, dim) when not.
        self.shapes = [(spec.length, dim) if spec.pooling == "none" else (dim,) for spec, _, dim in entries]
        self._no_lengths: tuple[np.ndarray | None, ...] = (None,) * len(self._entries)
        self._tables = sorted({table for _, table, _ in entries})
        self._total = total
        self._turn = store.overlays.turn()
        self._translated: tuple[OverlayView | None, int, int] = (None, 0, 0)
        self._busy = threading.Lock()  # held by the lookup that runs, and by `bind` and `release`
        self._lookup: Lookup | None = None
        self._completions = 0
        self.bind()

    def bind(self) -> None:
        """Uses the store's present tables from the next lookup on; returns when no lookup runs in earlier ones."""
        with self._busy:
            self._levels = {}
            self._lookup = Lookup(
                [tier.table for tier in self._store.dram_cache.tiers],
                [(table, POOLINGS.index(spec.pooling), spec.length) for spec, table, _ in self._entries],
                self._store.overlay_tables,
                [self._absent(spec, table).native() for spec, table, _ in self._entries],
                list(self._chains.features),
            )

    def lookup(
        self,
        batch: int,
        ids: Sequence[Jagged],
        timeout_s: float | None = None,
        mask: int = 0,
        into: LookupArrays | None = None,
    ) -> LookupResult:
        """Looks up all features of a batch.

        ids: one Jagged for each feature, `batch` bags each, with weights for weighted features. timeout_s: how long to
        wait for rows; a row that has not come by then is unresolved: it is counted and answered with zeros. mask: bit i
        shows overlay i (`TieredStore.stage`). into: the arrays of a batch of this size; None allocates new ones.
        Raises StoreError when a disk fails.
        """
        if len(ids) != len(self._entries):
            raise InvalidInput(f"lookup: the plan has {len(self._entries)} features, got {len(ids)}")
        if into is None:
            into = self.arrays(batch, once=True)
        with self._busy:
            counts, by_table = self._run(batch, ids, into, timeout_s, mask)
            fallback = self._fallback
        return LookupResult(into.outputs, into.masks, self._lengths(ids), counts, by_table, fallback)

    def arrays(
        self, batch: int, outputs: Sequence[np.ndarray | None] | None = None, *, once: bool = False
    ) -> LookupArrays:
        """Returns arrays for batches of this size: those of `outputs`, and new ones in place of None.

        once: they are for one lookup, after which the plan must not keep their memory.
        """
        made: list[np.ndarray] = []
        masks: list[np.ndarray | None] = []
        given = outputs or [None] * len(self._entries)
        for shape, own in zip(self.shapes, given, strict=True):
            made.append(np.empty((batch, *shape), np.float32) if own is None else own)
            masks.append(np.empty((batch, shape[0]), np.uint8) if len(shape) == 2 else None)
        return LookupArrays(made, masks) if once else LookupArrays(tuple(made), tuple(masks))

    def _absent(self, spec: LookupSpec, table: int) -> AbsentRows:
        return self._store.tables[table].absent if spec.absent is None else spec.absent

    def _lengths(self, ids: Sequence[Jagged]) -> tuple[np.ndarray | None, ...]:
        if not self._unpooled:
            return self._no_lengths
        lengths = list(self._no_lengths)
        for number in self._unpooled:
            lengths[number] = np.minimum(np.diff(ids[number].offsets), self._entries[number][0].length)
        return tuple(lengths)

    def _run(
        self,
        batch: int,
        ids: Sequence[Jagged],
        into: LookupArrays,
        timeout_s: float | None,
        mask: int,
    ) -> tuple[LookupCounts, np.ndarray]:
        started = now_ns()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        lookup = self._lookup
        if lookup is None:
            raise StoreError("the store is closed")
        values, offsets = [bags.values for bags in ids], [bags.offsets for bags in ids]
        weights = [bags.weights for bags in ids] if self._weighted else None
        missing = 0

        def begin(slots: int) -> None:
            nonlocal missing
            missing = lookup.begin(batch, values, offsets, into.outputs, into.masks, mask=slots, weights=weights)

        view = self._begin(mask, begin)
        reads = reads_ns = 0
        if missing:
            asked = now_ns()
            reads = self._resolve([(table, lookup) for table in self._tables], view, deadline)
            reads_ns = now_ns() - asked
        late: list[tuple[int, int]] = []
        self._fallback = {}
        if self._chains.features and (missing or mask):
            late = self._follow(lookup, ids, mask, deadline)
        counts = LookupCounts(*lookup.finish())
        counts.read_ns = reads_ns if reads else 0
        by_table = lookup.table_totals(len(COUNTED))
        for table, count in late:
            by_table[table, _UNRESOLVED] += np.uint64(count)
            counts.unresolved += count
        self._total.add(counts, by_table, now_ns() - started, reads, counts.read_ns)
        return counts, by_table

    def _follow(
        self, lookup: Lookup, ids: Sequence[Jagged], mask: int, deadline: float | None
    ) -> list[tuple[int, int]]:
        """Follows the chains of ids without a row. Returns tables whose rows did not come in time, and how many."""
        late: list[tuple[int, int]] = []

        def read(table: int, of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            rows, states = self._read(table, of, mask, deadline)
            if unresolved := int(np.count_nonzero(states == LATE)):
                late.append((table, unresolved))
            return rows, states

        lookup.settle()
        self._fallback = self._chains.follow(lookup, ids, read)
        return late

    def _read(self, table: int, ids: np.ndarray, mask: int, deadline: float | None) -> tuple[np.ndarray, np.ndarray]:
        """Reads rows (M, D) and states (M,) of one table, which no counts show."""
        lookup = self._levels.get(table)
        if lookup is None:
            tables: list[RowSource] = [tier.table for tier in self._store.dram_cache.tiers]
            shape = (table, POOLINGS.index("none"), 1)
            lookup = self._levels[table] = Lookup(tables, [shape], self._store.overlay_tables, None, [0])
        count = len(ids)
        rows = np.empty((count, 1, self._store.tables[table].dim), np.float32)
        found, offsets = np.empty((count, 1), np.uint8), np.arange(count + 1)
        missing = 0

        def begin(slots: int) -> None:
            nonlocal missing
            missing = lookup.begin(count, [ids], [offsets], [rows], [found], mask=slots)

        view = self._begin(mask, begin)
        if missing:
            self._resolve([(table, lookup)], view, deadline)
        lookup.settle()
        late = lookup.unresolved_places(0)
        lookup.finish()
        states = np.where(found[:, 0] != 0, FOUND, ABSENT).astype(np.uint8)
        states[late] = LATE
        return rows[:, 0], states

    def release(self) -> None:
        """Releases the tables; later lookups raise StoreError."""
        with self._busy:
            self._lookup = None
            self._levels = {}

    def _begin(self, mask: int, begin: Callable[[int], None]) -> OverlayView | None:
        """Begins lookups while no overlay that the mask shows can be dropped; returns the view they began with."""
        self._completions = self._store.dram_cache.completions
        if mask == 0:
            begin(0)
            return None
        self._turn.inside = True  # before the view is read: `overlays` explains why
        try:
            view = self._store.overlays.view
            begin(self._slots(view, mask))
        finally:
            self._turn.over += 1
            self._turn.inside = False
        return view

    def _slots(self, view: OverlayView, mask: int) -> int:
        known_view, known_mask, slots = self._translated
        if known_view is not view or known_mask != mask:
            slots = view.slots(mask)
            self._translated = (view, mask, slots)
        return slots

    def _resolve(self, begun: Sequence[tuple[int, Lookup]], view: OverlayView | None, deadline: float | None) -> int:
        """Gives lookups their missing rows; returns for how many distinct rows SSD was read. begun: by table."""
        store = self._store
        answers: list[tuple[int, Lookup, RowRead]] = []
        wanted: list[RowRead] = []
        for table, lookup in begun:
            ids = lookup.missing(table)
            if len(ids) == 0:
                continue
            whole = RowRead.of(store.cold_reads.number(table), ids, store.tables[table].row_bytes)
            answers.append((table, lookup, whole))
            base = np.arange(len(ids))
            if view is not None and any(table in overlay.spills for overlay in view.live):
                sources = lookup.missing_sources(table)
                base = np.flatnonzero(sources == _BASE)
                wanted.extend(
                    whole.at(np.flatnonzero(sources == slot), view.at_slot(slot).spills[table])
                    for slot in np.unique(sources[sources != _BASE]).tolist()
                )
            # The order matters: `dram_cache` explains why.
            if not (store.dram_cache.is_complete(table) and store.dram_cache.completions == self._completions):
                where = base[~store.dram_cache.negative[table].contains(ids[base])]
                if len(where):
                    wanted.append(whole if len(where) == len(ids) else whole.at(where))
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        store.cold_reads.read(wanted, view, left)
        for table, lookup, whole in answers:
            lookup.supply(table, whole.rows, whole.states)
        return sum(map(len, wanted))
