"""What the connections of a port may use together, and the one clock that ends those that take too long."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from serving.config import ServerConfig
from serving.errors import BodyTooLarge
from storage.errors import Overloaded

KEEP_ALIVE_S = 75.0
MAX_HEADER_BYTES = 64 << 10
NEVER = float("inf")
_TICK_S = 0.25


class Timed(Protocol):
    """A connection. due: when it has waited too long, of `time.monotonic`; NEVER while the server is at work."""

    due: float

    def expire(self) -> None:
        """Called when it is due, or up to a tick later."""


class HttpLimits:
    """One event loop. max_body: of one request; all bodies that are read or held together stay below max_inflight."""

    def __init__(self, config: ServerConfig) -> None:
        self.max_body = config.max_body_bytes
        self.body_timeout_s = config.body_timeout_s
        self._max_inflight = config.max_inflight_bytes
        self._held = 0
        self._connections: set[Timed] = set()
        self._ticking = False

    def add(self, connection: Timed) -> None:
        """Watches a connection until `remove`."""
        self._connections.add(connection)
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def remove(self, connection: Timed) -> None:
        """It has gone."""
        self._connections.discard(connection)

    def hold(self, size: int) -> None:
        """Takes bytes into account; `release` them. Raises Overloaded."""
        if self._held + size > self._max_inflight:
            raise Overloaded(f"requests of {self._max_inflight} bytes are being read already; try later")
        self._held += size

    def release(self, size: int) -> None:
        """Gives back what was held."""
        self._held -= size

    def too_large(self, got: str) -> BodyTooLarge:
        """The error for a body that is over the limit."""
        return BodyTooLarge(
            f"the body has {got} bytes, at most {self.max_body} are taken; send smaller batches, or start the server "
            "with a larger max_body_bytes",
            field="body",
        )

    def _tick(self) -> None:
        now = time.monotonic()
        for connection in [entry for entry in self._connections if entry.due <= now]:
            connection.expire()
        self._ticking = bool(self._connections)
        if self._ticking:
            asyncio.get_running_loop().call_later(_TICK_S, self._tick)
