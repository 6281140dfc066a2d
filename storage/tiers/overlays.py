"""Staged deltas of one store: their numbers, what masks mean, and which overlay of the native tables holds which.

A mask is an int of any size; bit n shows the overlay with number n. Numbers rise and are never used twice, while the
native tables have 63 slots that are. So a mask means the same for as long as it lives: an overlay that was merged may
stay in it (its rows are in the base, beneath all others), and no later overlay can ever answer in its name.

A slot is used again only when no lookup can still hold its bit. A lookup translates its mask to slots, asks the native
tables, and from then on goes by what they said; in between it is marked as `inside`. A dropped overlay first leaves
the view that masks are translated by. Then whoever drops it waits until each lookup that was inside is out (its turn
is over): later ones are translated by the new view. Then the entries go, and last the slot is free. So a lookup either
sees a dropped overlay whole or not at all. Marks and turns are plain attributes: the GIL orders the writes of one
thread before the reads of another.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from storage.errors import StoreError

MOST_OVERLAYS = 63
ROW, REMOVED, SPILLED = 0, 1, 2
# What an entry takes beside its row, as measured on staged deltas: index, chain, the remembered id.
ENTRY_BYTES = 64


@dataclass(frozen=True)
class OverlayStats:
    """One overlay. rows, removed: ids by kind. bytes: of memory that it takes. spilled: its rows lie on SSD."""

    snapshot: str
    rows: int
    removed: int
    bytes: int
    spilled: bool


@dataclass(eq=False)
class Overlay:
    """A staged delta. spills: table index -> number on SSD of a table whose rows lie there, never used twice."""

    number: int
    slot: int
    snapshot: str
    spills: dict[int, int] = field(default_factory=dict)
    rows: int = 0
    removed: int = 0
    bytes: int = 0
    merging: bool = False
    discarding: bool = False

    def stats(self) -> OverlayStats:
        """For people."""
        return OverlayStats(self.snapshot, self.rows, self.removed, self.bytes, bool(self.spills))


@dataclass(frozen=True)
class OverlayView:
    """What masks are translated by at one moment. discarded: a mask of the numbers that no mask may show any more."""

    live: tuple[Overlay, ...] = ()
    discarded: int = 0
    following: int = 0

    def slots(self, mask: int) -> int:
        """The slots (uint64) of a mask. Raises StoreError for overlays that were discarded or never staged."""
        if mask < 0 or mask >> self.following or mask & self.discarded:
            wrong = [n for n in range(max(0, mask).bit_length()) if mask >> n & 1 and not self._fits(n)]
            raise StoreError(f"the mask shows overlays {wrong}, which were discarded or never staged")
        slots = 0
        for overlay in self.live:
            slots |= (mask >> overlay.number & 1) << overlay.slot
        return slots

    def at_slot(self, slot: int) -> Overlay:
        """The overlay that this view has in a slot."""
        return next(overlay for overlay in self.live if overlay.slot == slot)

    def spilled_to(self, number: int) -> tuple[Overlay, int]:
        """The overlay whose rows lie on SSD in the table with this number, and their table's index in the store."""
        return next((overlay, table) for overlay in self.live for table, own in overlay.spills.items() if own == number)

    def _fits(self, number: int) -> bool:
        return number < self.following and not self.discarded >> number & 1


class Turn:
    """Where one thread's lookups are. inside: between the translation of a mask and the native tables' answer."""

    def __init__(self) -> None:
        self.inside = False
        self.over = 0


class Overlays:
    """The book of them. Every call is short and thread-safe; `view` is replaced whole and read without a lock."""

    def __init__(self) -> None:
        self.view = OverlayView()
        self._lock = threading.Lock()
        self._free = list(range(MOST_OVERLAYS))  # the last one freed is used next: its memory is there already
        self._hidden: dict[int, Overlay] = {}  # reserved, not shown yet
        self._turns: weakref.WeakSet[Turn] = weakref.WeakSet()

    def turn(self) -> Turn:
        """For one thread's lookups; forgotten with them."""
        turn = Turn()
        with self._lock:
            self._turns.add(turn)
        return turn

    def reserve(self, snapshot: str) -> Overlay:
        """A number and a slot that no lookup looks into. Raises StoreError when all slots are taken."""
        with self._lock:
            if not self._free:
                raise StoreError(f"{MOST_OVERLAYS} overlays are staged; merge or discard some first")
            number = self.view.following
            overlay = Overlay(number, self._free.pop(), snapshot)
            self._hidden[number] = overlay
            # Until it is shown, no mask may show it.
            self._replace(self.view.live, self.view.discarded | 1 << number, number + 1)
        return overlay

    def show(self, overlay: Overlay) -> None:
        """From now on masks may show it, above all that were shown before."""
        with self._lock:
            del self._hidden[overlay.number]
            view = self.view
            self._replace((*view.live, overlay), view.discarded & ~(1 << overlay.number), view.following)

    def get(self, number: int) -> Overlay:
        """A live overlay. Raises StoreError."""
        for overlay in self.view.live:
            if overlay.number == number:
                return overlay
        raise StoreError(f"no overlay {number} is staged; there are {[overlay.number for overlay in self.view.live]}")

    @contextmanager
    def merging(self, number: int) -> Iterator[Overlay]:
        """While it lasts, nobody discards the overlay."""
        with self._lock:
            overlay = self.get(number)
            if overlay.discarding:
                raise StoreError(f"overlay {number} is being discarded and cannot be merged")
            overlay.merging = True
        try:
            yield overlay
        finally:
            overlay.merging = False

    @contextmanager
    def discarding(self, number: int) -> Iterator[Overlay]:
        """While it lasts, nobody merges the overlay, and nobody else discards it. Raises StoreError."""
        with self._lock:
            overlay = self.get(number)
            if overlay.merging or overlay.discarding:
                doing = "merged" if overlay.merging else "discarded"
                raise StoreError(f"overlay {number} is being {doing} and cannot be discarded")
            overlay.discarding = True
        try:
            yield overlay
        finally:
            overlay.discarding = False

    def drop(self, overlay: Overlay, clear: Callable[[Overlay], None], *, merged: bool) -> None:
        """Takes an overlay out of the view; when no lookup is inside it, has its entries cleared and frees its slot."""
        with self._lock:
            if overlay.merging and not merged:
                raise StoreError(f"overlay {overlay.number} is being merged and cannot be discarded")
            view = self.view
            if overlay not in view.live and overlay.number not in self._hidden:
                raise StoreError(f"overlay {overlay.number} was dropped already")
            self._hidden.pop(overlay.number, None)
            live = tuple(other for other in view.live if other is not overlay)
            self._replace(live, view.discarded | (not merged) << overlay.number, view.following)
            waited_for = [(turn, turn.over) for turn in self._turns]
        for turn, over in waited_for:
            while turn.inside and turn.over == over:
                time.sleep(50e-6)  # the native part of one lookup
        clear(overlay)
        with self._lock:
            self._free.append(overlay.slot)

    def stats(self) -> dict[int, OverlayStats]:
        """By number, oldest first."""
        return {overlay.number: overlay.stats() for overlay in self.view.live}

    def _replace(self, live: tuple[Overlay, ...], discarded: int, following: int) -> None:
        self.view = OverlayView(live, discarded, following)
