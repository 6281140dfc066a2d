"""One lane's lookups: the ids of all features of a batch in one call, within a deadline.

A row comes from the newest overlay that the mask shows, else from the base: DRAM, then SSD. `merge` says why a lookup
sees one snapshot while overlays move into the base beneath it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from storage._table import Lookup
from storage.errors import InvalidInput, StoreError
from storage.specs import POOLINGS, LookupSpec

if TYPE_CHECKING:
    from storage.features import Jagged
    from storage.tiers.overlays import Overlay, OverlayView
    from storage.tiers.tiered import TieredStore

_ABSENT, _FOUND, _UNRESOLVED = 0, 1, 2
_BASE = 255
# Ids of one read. A cold row is one random read of the disk, so misses are shared out over the I/O threads as soon as
# that saves more than a hand-over costs; the upper bound keeps one large request from holding a thread for long.
READ_IDS_MIN = 16
READ_IDS_MAX = 1024


@dataclass
class LookupCounts:
    """Occurrences of ids by where their rows came from."""

    dram: int = 0
    ssd: int = 0
    absent: int = 0
    unresolved: int = 0
    overlay: int = 0

    def add(self, other: LookupCounts) -> None:
        """Adds what another one counted."""
        self.dram += other.dram
        self.ssd += other.ssd
        self.absent += other.absent
        self.unresolved += other.unresolved
        self.overlay += other.overlay


@dataclass(frozen=True)
class LookupResult:
    """What a lookup gives, one entry a feature, in the plan's order.

    outputs: float32 (B, dim) pooled, (B, length, dim) unpooled; absent and unresolved rows are zeros. masks: uint8
    (B, length), 1 where a row was found; None when pooled. lengths: int64 (B,) ids used of a bag; None when pooled.
    """

    outputs: list[np.ndarray]
    masks: list[np.ndarray | None]
    lengths: list[np.ndarray | None]
    counts: LookupCounts


@dataclass(frozen=True)
class _Read:
    """A part of a table's missing ids: `where` they stand among them. overlay: whose spilled rows they are, or None."""

    table: int
    where: np.ndarray
    ids: np.ndarray
    overlay: Overlay | None


class LookupPlan:
    """Made by `TieredStore.plan`. Scratch memory is reused, so one thread at a time; plans share the tables."""

    def __init__(
        self, store: TieredStore, entries: Sequence[tuple[LookupSpec, int, int]], counts: LookupCounts
    ) -> None:
        self._store = store
        self._entries = tuple(entries)
        self._weighted = any(spec.pooling == "weighted" for spec, _, _ in entries)
        self._tables = sorted({table for _, table, _ in entries})
        self._total = counts
        self._turn = store.overlays.turn()
        self._translated: tuple[OverlayView | None, int, int] = (None, 0, 0)
        self._lookup: Lookup | None = Lookup(
            [tier.table for tier in store.dram],
            [(table, POOLINGS.index(spec.pooling), spec.length) for spec, table, _ in entries],
            store.overlay_tables,
        )

    def lookup(self, batch: int, ids: Sequence[Jagged], timeout_s: float | None = None, mask: int = 0) -> LookupResult:
        """Looks up all features of a batch.

        ids: one Jagged a feature, `batch` bags each, with weights for those that are weighted. timeout_s: how long rows
        may be waited for; what did not come by then is unresolved, counted, and answered with zeros. mask: bit i shows
        overlay i (`TieredStore.stage`).
        Raises StoreError when a disk fails.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if len(ids) != len(self._entries):
            raise InvalidInput(f"lookup: the plan has {len(self._entries)} features, got {len(ids)}")
        outputs: list[np.ndarray] = []
        masks: list[np.ndarray | None] = []
        lengths: list[np.ndarray | None] = []
        for (spec, _, dim), bags in zip(self._entries, ids, strict=True):
            if spec.pooling == "none":
                outputs.append(np.empty((batch, spec.length, dim), np.float32))
                masks.append(np.empty((batch, spec.length), np.uint8))
                lengths.append(np.minimum(np.diff(bags.offsets), spec.length))
            else:
                outputs.append(np.empty((batch, dim), np.float32))
                masks.append(None)
                lengths.append(None)
        lookup = self._lookup
        if lookup is None:
            raise StoreError("the store is closed")
        values, offsets = [bags.values for bags in ids], [bags.offsets for bags in ids]
        weights = [bags.weights for bags in ids] if self._weighted else None
        view: OverlayView | None = None
        if mask == 0:
            missing = lookup.begin(batch, values, offsets, outputs, masks, weights=weights)
        else:
            self._turn.inside = True  # before the view is read: `overlays` says why
            try:
                view = self._store.overlays.view
                slots = self._slots(view, mask)
                missing = lookup.begin(batch, values, offsets, outputs, masks, mask=slots, weights=weights)
            finally:
                self._turn.over += 1
                self._turn.inside = False
        if missing:
            self._resolve(lookup, view, deadline)
        counts = LookupCounts(*lookup.finish())
        self._total.add(counts)
        return LookupResult(outputs, masks, lengths, counts)

    def release(self) -> None:
        """Lets go of the tables; later lookups raise StoreError."""
        self._lookup = None

    def _slots(self, view: OverlayView, mask: int) -> int:
        known_view, known_mask, slots = self._translated
        if known_view is not view or known_mask != mask:
            slots = view.slots(mask)
            self._translated = (view, mask, slots)
        return slots

    def _resolve(self, lookup: Lookup, view: OverlayView | None, deadline: float | None) -> None:
        store = self._store
        rows: dict[int, np.ndarray] = {}
        states: dict[int, np.ndarray] = {}
        reads: list[_Read] = []
        for table in self._tables:
            ids = lookup.missing(table)
            if len(ids) == 0:
                continue
            rows[table] = np.zeros((len(ids), store.tables[table].dim), np.float32)
            states[table] = np.full(len(ids), _ABSENT, np.uint8)
            base = np.arange(len(ids))
            if view is not None and any(table in overlay.spills for overlay in view.live):
                sources = lookup.missing_sources(table)
                base = np.flatnonzero(sources == _BASE)
                for slot in np.unique(sources[sources != _BASE]).tolist():
                    where = np.flatnonzero(sources == slot)
                    states[table][where] = _UNRESOLVED
                    reads.extend(self._share(table, where, ids, view.at_slot(slot)))
            if not store.is_complete(table):
                where = base[~store.known_absent(table, ids[base])]
                states[table][where] = _UNRESOLVED
                reads.extend(self._share(table, where, ids, None))
        if deadline is None and len(reads) == 1:
            read = reads[0]  # nothing to overlap: no hand-over
            found = [(read, store.read(read.table, read.ids, read.overlay))]
        else:
            found = self._read_all(reads, deadline)
        for read, (values, hits) in found:
            rows[read.table][read.where] = values
            states[read.table][read.where] = hits
        for table, state in states.items():
            lookup.supply(table, rows[table], state)

    def _share(self, table: int, where: np.ndarray, ids: np.ndarray, overlay: Overlay | None) -> list[_Read]:
        where = where[np.argsort(ids[where])]  # neighbours share blocks
        share = min(READ_IDS_MAX, max(READ_IDS_MIN, -(-len(where) // self._store.limits.io_threads)))
        parts = [where[start : start + share] for start in range(0, len(where), share)]
        return [_Read(table, part, ids[part], overlay) for part in parts]

    def _read_all(
        self, reads: Sequence[_Read], deadline: float | None
    ) -> list[tuple[_Read, tuple[np.ndarray, np.ndarray]]]:
        store = self._store
        futures: list[tuple[_Read, Future[tuple[np.ndarray, np.ndarray]]]] = []
        for read in reads:
            # Reads that nobody waits for any more may still be under way; their number is bounded here.
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not store.pending.acquire(timeout=left):
                break
            try:
                future = store.pool.submit(store.read, read.table, read.ids, read.overlay)
            except RuntimeError as error:
                store.pending.release()
                raise StoreError("the store is closed") from error
            future.add_done_callback(lambda _: store.pending.release())
            futures.append((read, future))
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        done, _ = wait([future for _, future in futures], timeout=left)
        for _, future in futures:
            if future not in done:
                future.cancel()
        return [(read, future.result()) for read, future in futures if future in done]
