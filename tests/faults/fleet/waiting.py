"""Waits for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

_LOOK_S = 0.02


def until(holds: Callable[[], object], what: str | Callable[[], str], timeout_s: float) -> float:
    """Waits until something holds and returns the seconds that it took. Raises AssertionError with `what`."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > timeout_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what() if callable(what) else what}")
        time.sleep(_LOOK_S)
    return time.monotonic() - began
