"""How many threads work at once on what changes on a card."""

from __future__ import annotations

import os

# More of them wait for memory, not for a core.
_MOST = 8


def usable_threads() -> int:
    """Of the cores that this process may use, at most a bound."""
    return min(_MOST, len(os.sched_getaffinity(0)))
