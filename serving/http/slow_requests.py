"""Requests that take longer than they should, found by one timer for all: one each would cost more than it tells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TICK_S = 0.025


class SlowRequests:
    """One event loop. A callback comes at its time or up to TICK_S later."""

    def __init__(self) -> None:
        self._due: dict[int, tuple[float, Callable[[], object]]] = {}
        self._next = 0
        self._ticking = False

    def watch(self, seconds: float, callback: Callable[[], object]) -> int:
        """Calls `callback` after so long, unless `forget` comes before."""
        self._next = key = self._next + 1
        self._due[key] = (time.monotonic() + seconds, callback)
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        return key

    def forget(self, key: int) -> None:
        """The request is over."""
        self._due.pop(key, None)

    def _tick(self) -> None:
        now = time.monotonic()
        for key, (due, callback) in list(self._due.items()):
            if due <= now and self._due.pop(key, None) is not None:
                callback()
        self._ticking = bool(self._due)
        if self._ticking:
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
