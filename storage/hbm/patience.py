"""Which snapshot takes a card's base over, and after how long."""

from __future__ import annotations

from collections import deque

from storage.hbm.replica import MOST_DIFFERENCES
from storage.hbm.sight import Difference, View

# A snapshot that nobody has asked for so long gives its place on the card to one that is asked for.
SETTLE_AFTER_S = 3.0
MOST_FACTOR = 64


class Patience:
    """Of one tier. One thread at a time.

    Snapshots that are asked for in turn, each less often than SETTLE_AFTER_S, would take the base from each other every
    time, and the one that lost it would be looked up by the host until it is brought again. So one that had the base
    before gets it back after twice as long with each change back, MOST_FACTOR times as long at most; meanwhile the card
    answers for both. One that never had it, as after a delta, waits no longer than ever, and the count begins anew.
    """

    def __init__(self) -> None:
        self._factor = 1
        # Masks of the last bases.
        self._before: deque[int] = deque(maxlen=MOST_DIFFERENCES)

    def heir(self, view: View | None, live: int, now: float, after_s: float) -> Difference | None:
        """The difference that may take the base over at a moment: asked for since the base was, and that is long ago.

        live: mask of the overlays that the store has. after_s: how long, for one that never had the base.
        """
        if view is None or view.base is None or not view.differences:
            return None
        wanted = max(view.differences, key=lambda each: each.use.last)
        least_s = after_s * self._factor if self._had_it(wanted.mask, live) else after_s
        return wanted if wanted.use.last > view.use.last <= now - least_s else None

    def changed(self, base: int, mask: int, live: int) -> None:
        """A snapshot takes the base over from another one."""
        self._factor = min(2 * self._factor, MOST_FACTOR) if self._had_it(mask, live) else 1
        self._before.append(base)

    def _had_it(self, mask: int, live: int) -> bool:
        return any((mask ^ each) & live == 0 for each in self._before)
