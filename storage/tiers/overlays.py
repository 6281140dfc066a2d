"""Numbers the staged deltas of one store, and translates masks to the slots of the native tables that hold them.

A mask is an int of any size; bit n shows the overlay with number n. Numbers rise and are never used twice, while the
native tables have 63 slots that are used again. A mask therefore keeps its meaning: an overlay that was merged may stay
in it (its rows are in the base, beneath all others), and no later overlay can answer for that bit.

A slot is used again only when no lookup can still hold its bit. A lookup translates its mask to slots, asks the native
tables, and from then on uses their answer; in between it is marked as `inside`. A dropped overlay first leaves the view
that masks are translated by. The thread that drops it then waits until each lookup that was inside is outside (its turn
is over); later lookups are translated by the new view. Then the entries are removed, and last the slot becomes free.
A lookup thus sees a dropped overlay whole or not at all. Marks and turns are plain attributes: the GIL orders the
writes of one thread before the reads of another.
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
# Bytes that an entry takes beside its row, as measured on staged deltas: index, chain, the remembered id.
ENTRY_BYTES = 64


@dataclass(frozen=True)
class OverlayStats:
    """The contents and the size of one overlay."""

    snapshot: str
    #: The number of ids that have a row.
    rows: int
    #: The number of ids that the overlay removes.
    removed: int
    #: The bytes of memory that the overlay takes.
    bytes: int
    #: Whether its rows lie on SSD.
    spilled: bool


@dataclass(eq=False)
class Overlay:
    """A staged delta."""

    number: int
    slot: int
    snapshot: str
    #: Maps the index of each table whose rows lie on SSD to a table number there, which is never used twice.
    spills: dict[int, int] = field(default_factory=dict)
    rows: int = 0
    removed: int = 0
    bytes: int = 0
    merging: bool = False
    discarding: bool = False

    def stats(self) -> OverlayStats:
        """Returns the overlay's counts and sizes, for reports."""
        return OverlayStats(self.snapshot, self.rows, self.removed, self.bytes, bool(self.spills))


@dataclass(frozen=True)
class OverlayView:
    """The overlays at one moment, by which masks are translated to slots."""

    #: The overlays that masks may show, oldest first.
    live: tuple[Overlay, ...] = ()
    #: A mask of the numbers that no mask may show: those discarded, and those reserved but not shown yet.
    discarded: int = 0
    #: The number of the next overlay.
    following: int = 0

    def slots(self, mask: int) -> int:
        """Returns the slots (uint64) of a mask. Raises StoreError for overlays that were discarded or never staged."""
        if mask < 0 or mask >> self.following or mask & self.discarded:
            wrong = [n for n in range(max(0, mask).bit_length()) if mask >> n & 1 and not self._fits(n)]
            raise StoreError(f"the mask shows overlays {wrong}, which were discarded or never staged")
        slots = 0
        for overlay in self.live:
            slots |= (mask >> overlay.number & 1) << overlay.slot
        return slots

    def at_slot(self, slot: int) -> Overlay:
        """Returns the overlay that this view has in a slot."""
        return next(overlay for overlay in self.live if overlay.slot == slot)

    def spilled_to(self, number: int) -> tuple[Overlay, int]:
        """Returns the overlay whose rows lie in this table number on SSD, and their table's index in the store."""
        return next((overlay, table) for overlay in self.live for table, own in overlay.spills.items() if own == number)

    def _fits(self, number: int) -> bool:
        return number < self.following and not self.discarded >> number & 1


class Turn:
    """Marks how far one thread's lookups are.

    `inside` is true between the translation of a mask and the native tables' answer; `over` counts the lookups that are
    past it.
    """

    def __init__(self) -> None:
        self.inside = False
        self.over = 0


class Overlays:
    """Registers the overlays of a store. Thread-safe: `view` is replaced whole and read without a lock."""

    def __init__(self) -> None:
        self.view = OverlayView()
        self._lock = threading.Lock()
        self._free = list(range(MOST_OVERLAYS))  # the last one freed is used next: its memory is allocated already
        self._hidden: dict[int, Overlay] = {}  # reserved, not shown yet
        self._turns: weakref.WeakSet[Turn] = weakref.WeakSet()

    def turn(self) -> Turn:
        """Registers a new turn for one thread's lookups; it is forgotten when they are garbage-collected."""
        turn = Turn()
        with self._lock:
            self._turns.add(turn)
        return turn

    def reserve(self, snapshot: str) -> Overlay:
        """Reserves a number and a slot that no lookup reads yet. Raises StoreError when all slots are taken."""
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
        """Allows masks to show the overlay from now on, above all that were shown before."""
        with self._lock:
            del self._hidden[overlay.number]
            view = self.view
            self._replace((*view.live, overlay), view.discarded & ~(1 << overlay.number), view.following)

    def get(self, number: int) -> Overlay:
        """Returns the live overlay with this number. Raises StoreError when there is none."""
        for overlay in self.view.live:
            if overlay.number == number:
                return overlay
        raise StoreError(f"no overlay {number} is staged; there are {[overlay.number for overlay in self.view.live]}")

    @contextmanager
    def merging(self, number: int) -> Iterator[Overlay]:
        """Keeps the overlay from being discarded within the context. Raises StoreError."""
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
        """Keeps the overlay from being merged, or discarded by others, within the context. Raises StoreError."""
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
        """Removes an overlay from the view, waits until no lookup is inside it, clears its entries, frees its slot."""
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
        """Returns the statistics of the live overlays by number, oldest first."""
        return {overlay.number: overlay.stats() for overlay in self.view.live}

    def _replace(self, live: tuple[Overlay, ...], discarded: int, following: int) -> None:
        self.view = OverlayView(live, discarded, following)
