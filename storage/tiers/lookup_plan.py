"""One lane's lookups: the ids of all features of a batch in one call, from DRAM, then SSD, within a deadline."""

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
    from storage.tiers.tiered import TieredStore

_ABSENT, _FOUND, _UNRESOLVED = 0, 1, 2
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
    """A part of a table's missing ids: `where` they stand among them."""

    table: int
    where: np.ndarray
    ids: np.ndarray


class LookupPlan:
    """Made by `TieredStore.plan`. Scratch memory is reused, so one thread at a time; plans share the tables."""

    def __init__(
        self, store: TieredStore, entries: Sequence[tuple[LookupSpec, int, int]], counts: LookupCounts
    ) -> None:
        self._store = store
        self._entries = tuple(entries)
        self._tables = sorted({table for _, table, _ in entries})
        self._total = counts
        self._lookup = Lookup(
            [tier.table for tier in store.dram],
            [(table, POOLINGS.index(spec.pooling), spec.length) for spec, table, _ in entries],
        )

    def lookup(self, batch: int, ids: Sequence[Jagged], timeout_s: float | None = None, mask: int = 0) -> LookupResult:
        """Looks up all features of a batch.

        ids: one Jagged a feature, `batch` bags each. timeout_s: how long rows may be waited for; what did not come by
        then is unresolved, counted, and answered with zeros. mask: bit i shows overlay i (`TieredStore.stage`).
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
        missing = self._lookup.begin(
            batch, [bags.values for bags in ids], [bags.offsets for bags in ids], outputs, masks
        )
        if missing:
            self._resolve(deadline)
        counts = LookupCounts(*self._lookup.finish())
        self._total.dram += counts.dram
        self._total.ssd += counts.ssd
        self._total.absent += counts.absent
        self._total.unresolved += counts.unresolved
        return LookupResult(outputs, masks, lengths, counts)

    def _resolve(self, deadline: float | None) -> None:
        store = self._store
        rows: dict[int, np.ndarray] = {}
        states: dict[int, np.ndarray] = {}
        reads: list[_Read] = []
        for table in self._tables:
            ids = self._lookup.missing(table)
            if len(ids) == 0:
                continue
            rows[table] = np.zeros((len(ids), store.tables[table].dim), np.float32)
            states[table] = np.full(len(ids), _ABSENT, np.uint8)
            if store.is_complete(table):
                continue
            where = np.flatnonzero(~store.known_absent(table, ids))
            states[table][where] = _UNRESOLVED
            where = where[np.argsort(ids[where])]  # neighbours share blocks
            share = min(READ_IDS_MAX, max(READ_IDS_MIN, -(-len(where) // store.limits.io_threads)))
            for start in range(0, len(where), share):
                part = where[start : start + share]
                reads.append(_Read(table, part, ids[part]))
        if deadline is None and len(reads) == 1:
            found = [(reads[0], store.read(reads[0].table, reads[0].ids))]  # nothing to overlap: no hand-over
        else:
            found = self._read_all(reads, deadline)
        for read, (values, hits) in found:
            rows[read.table][read.where] = values
            states[read.table][read.where] = hits
        for table, state in states.items():
            self._lookup.supply(table, rows[table], state)

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
                future = store.pool.submit(store.read, read.table, read.ids)
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
