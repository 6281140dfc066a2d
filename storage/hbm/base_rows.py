"""Rows of a snapshot, as a card's slots take them, read on the way that requests take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from storage.features import Jagged
from storage.rows import RowCodec
from storage.specs import LookupSpec
from storage.tiers.base import Encoded, Ids
from storage.tiers.counting import LookupTotals
from storage.tiers.lookup_plan import LookupPlan
from storage.tiers.overlays import Overlay

if TYPE_CHECKING:
    from storage.tiers.tiered import TieredStore

# What is looked up and brought to a card at once.
_PIECE_BYTES = 32 << 20
_PIECE_IDS = 1 << 16
# Rows of the differences are waited for so long; those that SSD has not delivered by then stay on the host.
DIFFERENCE_TIMEOUT_S = 5.0


class SnapshotRows:
    """Of one store. Any thread; uses are not counted."""

    def __init__(self, store: TieredStore) -> None:
        self._store = store
        self._codecs = [RowCodec(spec.row_type, spec.dim) for spec in store.tables]

    def pieces(self, table: int, ids: Ids) -> Iterator[slice]:
        """Slices that cover so many ids of a table, each of bounded size."""
        step = max(1, min(_PIECE_IDS, _PIECE_BYTES // (4 * self._store.tables[table].dim)))
        return (slice(start, min(start + step, len(ids))) for start in range(0, len(ids), step))

    def find(self, mask: int, table: int, ids: Ids, timeout_s: float | None) -> tuple[Encoded, np.ndarray]:
        """Encoded rows (m, row_bytes) of the ids that were found, and which were (n,) bool. Raises StoreError."""
        spec = self._store.tables[table]
        entry = (LookupSpec(spec.name, spec.name, "none", 1), table, spec.dim)
        plan = LookupPlan(self._store, [entry], LookupTotals.of(len(self._store.tables)))
        bags = Jagged(ids, np.arange(len(ids) + 1, dtype=np.int64))
        result = plan.lookup(len(ids), [bags], timeout_s, mask)
        mask_of = result.masks[0]
        assert mask_of is not None
        found = mask_of[:, 0] == 1
        rows = result.outputs[0].reshape(len(ids), spec.dim)
        return self._codecs[table].encode(rows[found]), found

    def covered(self, table: int, ids: Ids, overlays: Iterable[Overlay]) -> np.ndarray:
        """(n,) bool: which ids one of the overlays says something of."""
        slots = 0
        for overlay in overlays:
            slots |= 1 << overlay.slot
        states = np.zeros(len(ids), np.uint8)
        if slots:
            values = np.empty((len(ids), self._store.tables[table].dim), np.float32)
            self._store.overlay_tables[table].find(slots, ids, values, states, np.empty(len(ids), np.uint8))
        return np.asarray(states != 0)

    def ids(self, table: int, overlays: Iterable[Overlay]) -> Ids:
        """(n,) what overlays say something of, each once."""
        parts = [self._store.overlay_tables[table].ids(overlay.slot)[0] for overlay in overlays]
        if len(parts) <= 1:
            return parts[0] if parts else np.empty(0, np.int64)
        ids = np.sort(np.concatenate(parts))  # numpy's unique takes ten times as long
        return ids[np.insert(ids[1:] != ids[:-1], 0, True)] if len(ids) else ids
