"""Bounds the number of threads that work at once on changes of a GPU's cache."""

from __future__ import annotations

import os

# Threads beyond this number wait for memory, not for a core.
_MOST = 8


def usable_threads() -> int:
    """Returns the number of cores that this process may use, up to a bound."""
    return min(_MOST, len(os.sched_getaffinity(0)))
