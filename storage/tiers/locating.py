"""Says where the rows of ids lie, for people who ask. Nothing is promoted, and no request's lookup is counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from storage._pages import FOUND
from storage._table import OverlayTable
from storage.errors import NotFound
from storage.specs import TableSpec
from storage.tiers.cold_reads import ColdReads
from storage.tiers.dram_cache import DramCache
from storage.tiers.overlays import REMOVED, ROW, Overlays
from storage.tiers.ssd.tier import SsdTier

# The states that an overlay table gives.
_ROW, _REMOVED = ROW + 1, REMOVED + 1


class LocatedStore(Protocol):
    """The part of a store that is asked."""

    tables: tuple[TableSpec, ...]
    overlays: Overlays
    overlay_tables: list[OverlayTable]
    cold_reads: ColdReads
    ssd: SsdTier

    @property
    def dram_cache(self) -> DramCache:
        """The cache of the rows in DRAM."""


@dataclass(frozen=True)
class Located:
    """The places of the rows of some ids."""

    #: overlay, dram, ssd or absent, by id.
    tiers: list[str]
    #: The number of the newest overlay that has or removes the id; None where the base decides.
    overlays: list[int | None]


def locate(store: LocatedStore, table: str, ids: np.ndarray, mask: int) -> Located:
    """Finds the rows of ids (n,) int64 of a table, as a lookup with this mask would. Raises NotFound, StoreError."""
    index = next((place for place, spec in enumerate(store.tables) if spec.name == table), -1)
    if index < 0:
        raise NotFound(f"the store has no table {table!r}")
    spec, ids = store.tables[index], np.ascontiguousarray(ids, np.int64)
    rows, states = np.empty((len(ids), spec.dim), np.float32), np.zeros(len(ids), np.uint8)
    slots = np.full(len(ids), 255, np.uint8)
    turn = store.overlays.turn()
    turn.inside = True  # no overlay that the mask shows is dropped meanwhile
    try:
        view = store.overlays.view
        store.overlay_tables[index].find(view.slots(mask), ids, rows, states, slots)
        of_slot = {slot: view.at_slot(slot).number for slot in set(slots[states > 0].tolist())}
    finally:
        turn.over += 1
        turn.inside = False
    tiers = np.select([states == _ROW, states == _REMOVED, states > 0], ["overlay", "absent", "ssd"], "")
    left = np.flatnonzero(states == 0)
    found = np.zeros(len(left), np.uint8)
    store.dram_cache.tiers[index].table.find(ids[left], rows[: len(left)], found)
    tiers[left[found > 0]] = "dram"
    left = left[found == 0]
    if len(left):
        there = store.ssd.find(store.cold_reads.number(index), ids[left], spec.row_bytes)[1]
        tiers[left] = np.where(there == FOUND, "ssd", "absent")
    numbers = [of_slot[slot] if state else None for slot, state in zip(slots.tolist(), states.tolist(), strict=True)]
    return Located(tiers.tolist(), numbers)
