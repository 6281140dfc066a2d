"""Reads rows of a snapshot in the encoding of a GPU's slots, in the same way as requests read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from storage.features import Jagged
from storage.hbm.threads import usable_threads
from storage.initializers import ABSENT_ZEROS
from storage.rows import RowCodec
from storage.specs import LookupSpec
from storage.tiers.arrays import Encoded, Ids
from storage.tiers.counting import LookupTotals
from storage.tiers.lookup_plan import LookupPlan
from storage.tiers.overlays import Overlay
from storage.tiers.tiered import TieredStore

# Bytes that are looked up and brought to a GPU at once.
_PIECE_BYTES = 32 << 20
_PIECE_IDS = 1 << 16
# Rows of the differences are waited for this long; those that SSD has not delivered by then stay on the host.
DIFFERENCE_TIMEOUT_S = 5.0
# States of an id in an overlay, as CoverState of storage/native/table/overlay.h. A spilled row lies on SSD.
_NONE, _REMOVED, _SPILLED = 0, 2, 3


class SnapshotRows:
    """Reads rows of the snapshots of one store. Thread-safe; uses are not counted."""

    def __init__(self, store: TieredStore) -> None:
        self._store = store
        self._codecs = [RowCodec(spec.row_type, spec.dim) for spec in store.tables]
        self._threads = usable_threads()

    def pieces(self, table: int, ids: Ids, most: int = _PIECE_IDS) -> Iterator[slice]:
        """Yields slices that cover the given ids of a table, each of bounded size. most: ids of one slice."""
        step = max(1, min(_PIECE_IDS, most, _PIECE_BYTES // (4 * self._store.tables[table].dim)))
        return (slice(start, min(start + step, len(ids))) for start in range(0, len(ids), step))

    def find(self, mask: int, table: int, ids: Ids, timeout_s: float | None) -> tuple[Encoded, np.ndarray]:
        """Returns encoded rows (m, row_bytes) of the ids that were found, and which were found, (n,) bool.

        Raises StoreError.
        """
        spec = self._store.tables[table]
        entry = (LookupSpec(spec.name, spec.name, "none", 1, ABSENT_ZEROS), table, spec.dim)
        plan = LookupPlan(self._store, [entry], LookupTotals.of(len(self._store.tables)))
        bags = Jagged(ids, np.arange(len(ids) + 1, dtype=np.int64))
        result = plan.lookup(len(ids), [bags], timeout_s, mask)
        mask_of = result.masks[0]
        assert mask_of is not None
        found = mask_of[:, 0] == 1
        rows = result.outputs[0].reshape(len(ids), spec.dim)
        return self._codecs[table].encode(rows[found]), found

    def take(
        self, mask: int, table: int, ids: Ids, space: Encoded, timeout_s: float | None
    ) -> tuple[Ids, Encoded, Ids]:
        """Finds rows as `find` does, in any order, and writes them to `space`.

        Returns the ids that were found (m,), their rows in `space` (m, stride), and the ids that were not found. space:
        (n, stride) or more; the bytes behind a row are zeros or keep their value. Raises StoreError.

        Rows that overlays hold in memory are copied in their encoded form, which encoding would give again.
        """
        at, states = np.empty(len(ids), np.int64), np.empty(len(ids), np.uint8)
        turn = self._store.overlays.turn()
        turn.inside = True  # before the view is read: `storage.tiers.overlays` explains why
        try:
            slots = self._store.overlays.view.slots(mask)
            held = self._store.overlay_tables[table]
            count = held.copy_rows(slots, ids, space[: len(ids)], at, states, self._threads)
        finally:
            turn.over += 1
            turn.inside = False
        taken = ids[at[:count]]
        if count == len(ids):
            return taken, space[:count], ids[:0]
        # An entry that moves into the base meanwhile is found by `find`, which asks the overlays again.
        others = ids[(states == _NONE) | (states == _SPILLED)]
        missing = ids[states == _REMOVED]
        if len(others):
            rows, found = self.find(mask, table, others, timeout_s)
            space[count : count + len(rows), : rows.shape[1]] = rows
            taken, missing = np.concatenate([taken, others[found]]), np.concatenate([missing, others[~found]])
        return taken, space[: len(taken)], missing

    def covered(self, table: int, ids: Ids, overlays: Iterable[Overlay]) -> np.ndarray:
        """Returns which ids one of the overlays covers, (n,) bool."""
        slots = 0
        for overlay in overlays:
            slots |= 1 << overlay.slot
        states = np.zeros(len(ids), np.uint8)
        if slots:
            values = np.empty((len(ids), self._store.tables[table].dim), np.float32)
            self._store.overlay_tables[table].find(slots, ids, values, states, np.empty(len(ids), np.uint8))
        return np.asarray(states != 0)

    def ids(self, table: int, overlays: Iterable[Overlay]) -> Ids:
        """Returns the ids (n,) that overlays cover, each once."""
        parts = [self._store.overlay_tables[table].ids(overlay.slot)[0] for overlay in overlays]
        if len(parts) <= 1:
            return parts[0] if parts else np.empty(0, np.int64)
        ids = np.sort(np.concatenate(parts))  # numpy's unique takes ten times as long
        return ids[np.insert(ids[1:] != ids[:-1], 0, True)] if len(ids) else ids
