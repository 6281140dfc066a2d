"""Which snapshots a card can answer for at a moment, and how a lane gets to know.

The base of a replica holds the rows of one snapshot. Another one is a *difference*: the rows of the ids that the
overlays hold in which the two differ, under virtual tables that a lookup asks first.
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
    """By time.monotonic(). last: when a lane last asked, 0 for never. made: when it was brought to the card."""

    last: float = 0.0
    made: float = field(default_factory=time.monotonic)

    @property
    def latest(self) -> float:
        """Of the two."""
        return max(self.last, self.made)


@dataclass(frozen=True)
class Sight:
    """What a lookup on the card needs for one snapshot. chain: numbers of differences that are asked before the base,
    the first one first; at most 8.
    """

    chain: tuple[int, ...]
    replica: Replica


@dataclass(frozen=True, eq=False)
class Difference:
    """A snapshot beside the base. overlays: those in which they differ. entries: on the card, under its number."""

    mask: int
    number: int
    overlays: tuple[Overlay, ...]
    entries: int
    use: Use = field(default_factory=Use)

    @property
    def chain(self) -> tuple[int, ...]:
        """Of a lookup."""
        return (self.number,) if self.entries else ()


@dataclass(frozen=True, eq=False)
class View:
    """What lanes go by; replaced as a whole. base: mask of the snapshot that the base holds, None while it changes."""

    replica: Replica
    base: int | None
    differences: tuple[Difference, ...] = ()
    use: Use = field(default_factory=Use)

    def find(self, mask: int, live: int) -> tuple[Sight, Use] | None:
        """live: mask of the overlays that the store has now. What was merged is in all snapshots that are in use."""
        if self.base is not None and (self.base ^ mask) & live == 0:
            return Sight((), self.replica), self.use
        difference = self.difference(mask, live)
        return None if difference is None else (Sight(difference.chain, self.replica), difference.use)

    def difference(self, mask: int, live: int) -> Difference | None:
        """The one for a mask."""
        return next((each for each in self.differences if (each.mask ^ mask) & live == 0), None)


def live_mask(view: OverlayView) -> int:
    """Of the overlays that can be shown."""
    return sum(1 << overlay.number for overlay in view.live)


def can_be_shown(mask: int, view: OverlayView) -> bool:
    """Whether the store answers for a mask: it shows nothing that was discarded, or is not there yet."""
    return mask >= 0 and not mask >> view.following and not mask & view.discarded


class Reader:
    """Of one lane; one thread at a time. Between `enter` and `leave` nothing that it can find is taken away."""

    def __init__(
        self, turn: Turn, overlays: Overlays, view: Callable[[], View | None], ask: Callable[[int], None]
    ) -> None:
        """ask: told of a mask that the card cannot answer for."""
        self._turn = turn
        self._overlays = overlays
        self._view = view
        self._ask = ask
        self._known: tuple[View | None, OverlayView | None, int, tuple[Sight, Use] | None] = (None, None, 0, None)

    def enter(self, mask: int) -> Sight | None:
        """What to look up by until `leave`; None, and not inside, where the host has to."""
        self._turn.begin()
        # In this order: a merged overlay is let go only when the card's base has it, and no lane goes by a view before.
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
        sight, use = found
        use.last = time.monotonic()
        return sight

    def forget(self) -> None:
        """Keeps no replica alive; any thread, while it is not inside."""
        self._known = (None, None, 0, None)

    def leave(self) -> None:
        """When nothing that was launched meanwhile is on a stream any more."""
        self._turn.end()
