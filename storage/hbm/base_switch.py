"""Chooses when another snapshot becomes the base of a GPU: a switch with exponential backoff."""

from __future__ import annotations

from collections import deque

from storage.hbm.replica import MOST_DIFFERENCES
from storage.hbm.visibility import Difference, View

# A base that no session has asked for this long is replaced by a snapshot that is asked for.
SETTLE_AFTER_S = 3.0
MOST_FACTOR = 64


class SwitchBackoff:
    """Backoff of the base switches of one tier. Not thread-safe.

    Snapshots that are asked for in turn, each less often than every SETTLE_AFTER_S, would evict each other from the
    base every time, and the evicted one would be looked up by the host until it is brought again. So a snapshot that
    was the base before becomes it again only after a time that doubles with each switch back, up to MOST_FACTOR times;
    meanwhile the GPU answers for both. One that never was the base, as after a delta, waits no longer than usual, and
    resets the count.
    """

    def __init__(self) -> None:
        self._factor = 1
        # Masks of the last bases.
        self._before: deque[int] = deque(maxlen=MOST_DIFFERENCES)

    def next_base(self, view: View | None, live: int, now: float, after_s: float) -> Difference | None:
        """Returns the difference that may become the base now: asked for since the base was, which is long enough ago.

        live: mask of the overlays that the store has. after_s: the wait for one that never was the base.
        """
        if view is None or view.base is None or not view.differences:
            return None
        wanted = max(view.differences, key=lambda each: each.use.last)
        least_s = after_s * self._factor if self._had_it(wanted.mask, live) else after_s
        return wanted if wanted.use.last > view.use.last <= now - least_s else None

    def changed(self, base: int, mask: int, live: int) -> None:
        """Notes that a snapshot has replaced another one as the base."""
        self._factor = min(2 * self._factor, MOST_FACTOR) if self._had_it(mask, live) else 1
        self._before.append(base)

    def _had_it(self, mask: int, live: int) -> bool:
        return any((mask ^ each) & live == 0 for each in self._before)
