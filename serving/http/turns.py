"""Bounds how much of the event loop goes to requests that wait behind others on their connection."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

# Callbacks that run at once; the next ones run a millisecond later. All connections together get 2,000 a second.
_STARTED_AT_ONCE = 2
_APART_S = 0.001


class Turns:
    """Runs callbacks in the order in which they were added, at a bounded rate. Not thread-safe: for one event loop.

    A client may send thousands of requests without waiting for an answer, and needs no token for it. Without a bound,
    each iteration of the loop would last as long as one request of every such connection, and all other callers would
    wait for them, above all gRPC calls, which need several iterations. A client that waits for each answer before it
    sends the next request never gets here.
    """

    def __init__(self) -> None:
        # An ordered set: each callback is in it once, in the order of the calls; the values are not used.
        self._asked: OrderedDict[Callable[[], None], None] = OrderedDict()
        self._is_scheduled = False
        self._next_at = 0.0

    def soon(self, callback: Callable[[], None]) -> None:
        """Runs a callback in a later iteration; once, however often it is added before that."""
        self._asked.setdefault(callback)
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        loop = asyncio.get_running_loop()
        left_s = self._next_at - time.monotonic()
        if left_s > 0:
            loop.call_later(left_s, self._run)
        else:
            loop.call_soon(self._run)

    def _run(self) -> None:
        self._next_at = time.monotonic() + _APART_S
        for _ in range(min(_STARTED_AT_ONCE, len(self._asked))):
            callback, _ = self._asked.popitem(last=False)
            callback()
        self._is_scheduled = False
        if self._asked:
            self._schedule()
