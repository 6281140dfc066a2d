"""Finds the snapshots that a GPU can answer for at a moment; a reader gives them to a session.

The base of a replica holds the rows of one snapshot. Another one is a *difference*: the rows of the ids that the
overlays hold in which the two differ, under virtual tables that a lookup searches first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from storage.hbm.readers import Turn
from storage.hbm.replica import Replica
from storage.tiers.overlays import Overlay, Overlays, OverlayView


@dataclass
class Use:
    """Times of use, by time.monotonic()."""

    #: When a session last asked, 0 for never.
    last: float = 0.0
    #: When it was brought to the GPU.
    made: float = field(default_factory=time.monotonic)

    @property
    def latest(self) -> float:
        """The later of `last` and `made`."""
        return max(self.last, self.made)


@dataclass(frozen=True)
class VisibleSnapshot:
    """The data that a lookup on the GPU needs for one snapshot."""

    #: Numbers of the differences that are searched before the base, the first one first; at most 8.
    chain: tuple[int, ...]
    replica: Replica


@dataclass(frozen=True, eq=False)
class Difference:
    """A snapshot beside the base."""

    mask: int
    number: int
    #: The overlays in which the two differ.
    overlays: tuple[Overlay, ...]
    #: Entries on the GPU, under its number.
    entries: int
    use: Use = field(default_factory=Use)

    @property
    def chain(self) -> tuple[int, ...]:
        """Numbers of the differences that a lookup searches, in order."""
        return (self.number,) if self.entries else ()


@dataclass(frozen=True, eq=False)
class View:
    """The state that sessions look up by; replaced as a whole."""

    replica: Replica
    #: Mask of the snapshot that the base holds, None while it changes.
    base: int | None
    differences: tuple[Difference, ...] = ()
    use: Use = field(default_factory=Use)

    def find(self, mask: int, live: int) -> tuple[VisibleSnapshot, Use] | None:
        """Finds the visible snapshot of a mask and its times of use; None where the GPU does not answer for it.

        live: mask of the overlays that the store has now. A merged overlay is in all snapshots that are in use.
        """
        if self.base is not None and (self.base ^ mask) & live == 0:
            return VisibleSnapshot((), self.replica), self.use
        difference = self.difference(mask, live)
        return None if difference is None else (VisibleSnapshot(difference.chain, self.replica), difference.use)

    def difference(self, mask: int, live: int) -> Difference | None:
        """Returns the difference for a mask, None where there is none."""
        return next((each for each in self.differences if (each.mask ^ mask) & live == 0), None)


def live_mask(view: OverlayView) -> int:
    """Returns the mask of the overlays that can be shown."""
    return sum(1 << overlay.number for overlay in view.live)


def can_be_shown(mask: int, view: OverlayView) -> bool:
    """Returns whether the store answers for a mask: it shows no overlay that was discarded or is not staged yet."""
    return mask >= 0 and not mask >> view.following and not mask & view.discarded


class Reader:
    """Finds rows for one session.

    Not thread-safe. Between `enter` and `leave` nothing that it can find is taken away.
    """

    def __init__(
        self, turn: Turn, overlays: Overlays, view: Callable[[], View | None], ask: Callable[[int], None]
    ) -> None:
        """Makes a reader. ask: called with a mask that the GPU cannot answer for."""
        self._turn = turn
        self._overlays = overlays
        self._view = view
        self._ask = ask
        self._known: tuple[View | None, OverlayView | None, int, tuple[VisibleSnapshot, Use] | None] = (
            None,
            None,
            0,
            None,
        )

    def enter(self, mask: int) -> VisibleSnapshot | None:
        """Returns the visibility to look up by until `leave`; None, and not inside, where the host has to look up."""
        self._turn.begin()
        # The view is read first: a merged overlay is released only when the GPU's base has it, and no session uses an
        # older view.
        view = self._view()
        overlays = self._overlays.view
        known_view, known_overlays, known_mask, found = self._known
        if view is not known_view or overlays is not known_overlays or mask != known_mask:
            found = None
            if view is not None and can_be_shown(mask, overlays):
                found = view.find(mask, live_mask(overlays))
            self._known = (view, overlays, mask, found)
        if found is None:
            self._turn.end()
            if view is not None:
                self._ask(mask)
            return None
        visible, use = found
        use.last = time.monotonic()
        return visible

    def forget(self) -> None:
        """Drops the reference to a replica. Thread-safe, while it is not inside."""
        self._known = (None, None, 0, None)

    def leave(self) -> None:
        """Leaves; call it when nothing that was launched meanwhile is on a stream any more."""
        self._turn.end()
