"""What the connections of a port may use together, and the one clock that ends those that take too long."""

from __future__ import annotations

import asyncio
import heapq
import resource
import time
from typing import Protocol

from serving.config import ServerConfig
from serving.errors import BodyTooLarge
from serving.http.turns import Turns
from storage.errors import Overloaded

KEEP_ALIVE_S = 75.0
NEVER = float("inf")
_TICK_S = 0.25
# Left to stores, and to connections that are notified that there are too many. A quarter where there are few files.
_SPARE_FILES = 256


class Timed(Protocol):
    """A connection, with times of `time.monotonic`.

    address: of its other end, by which connections are counted; "" for none. due: when it has waited too long; NEVER
    while the server is at work. idle_since: since when the head of no request has been complete; NEVER from there until
    the answer has been sent, also when that is before the body is here.
    """

    address: str
    due: float
    idle_since: float

    def expire(self) -> None:
        """Called when it is due, or up to a tick later."""

    def give_way(self) -> None:
        """Ends it at once: it is idle, and others want to come."""


class HttpLimits:
    """One event loop. max_body: of one request; all bodies that are read or held together stay below max_inflight.

    What clients send ahead of their answers has a quarter of that beside: it needs no token, so it may not use up what
    is for bodies.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.max_body = config.max_body_bytes
        self.body_timeout_s = config.body_timeout_s
        self.turns = Turns()
        self._max_inflight = config.max_inflight_bytes
        self._max_connections = config.max_connections
        self._max_of_address = config.connections_per_address
        # The system hands out the lowest number that is free, so one from here on says that few are left.
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._last_descriptor = 2**31 if files == resource.RLIM_INFINITY else files - min(_SPARE_FILES, files // 4)
        self._held = self._unread = 0
        self._connections: set[Timed] = set()
        self._by_address: dict[str, set[Timed]] = {}
        self._ticking = False

    def add(self, connection: Timed, descriptor: int = -1) -> None:
        """Watches a connection until `remove`. Raises Overloaded: there are too many, all at work.

        descriptor: of its socket; the last files that the process may have open are not for connections.
        """
        others = self._by_address.get(connection.address, set())
        if len(others) >= self._max_of_address and not self._make_room(others, self._max_of_address):
            raise Overloaded(f"this address has {self._max_of_address} connections already, all at work; try later")
        is_full = len(self._connections) >= self._max_connections or descriptor >= self._last_descriptor
        if is_full and not self._make_room(self._connections, self._max_connections):
            raise Overloaded("too many connections are open; try later")
        self._connections.add(connection)
        self._by_address.setdefault(connection.address, set()).add(connection)
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def remove(self, connection: Timed) -> None:
        """It has gone."""
        self._connections.discard(connection)
        others = self._by_address.get(connection.address)
        if others is not None:
            others.discard(connection)
            if not others:
                del self._by_address[connection.address]

    def hold(self, size: int) -> None:
        """Takes bytes into account; `release` them. Raises Overloaded."""
        if self._held + size > self._max_inflight:
            raise Overloaded(f"requests of {self._max_inflight} bytes are being read already; try later")
        self._held += size

    def release(self, size: int) -> None:
        """Gives back what was held."""
        self._held -= size

    def hold_unread(self, size: int) -> None:
        """As `hold`, for what waits unread. Raises Overloaded."""
        if self._unread + size > self._max_inflight // 4:
            raise Overloaded("too much is sent ahead of its answers; wait for each answer, or try later")
        self._unread += size

    def release_unread(self, size: int) -> None:
        """As `release`."""
        self._unread -= size

    def too_large(self, got: str) -> BodyTooLarge:
        """The error for a body that is over the limit."""
        return BodyTooLarge(
            f"the body has {got} bytes, at most {self.max_body} are taken; send smaller batches, or start the server "
            "with a larger max_body_bytes",
            field="body",
        )

    def _make_room(self, connections: set[Timed], bound: int) -> bool:
        """Ends those that have been idle for longest, several at a time, because finding them costs a look at all."""
        idle = [each for each in connections if each.idle_since < NEVER]
        for connection in heapq.nsmallest(max(1, bound // 64), idle, key=lambda each: each.idle_since):
            self.remove(connection)
            connection.give_way()
        return bool(idle)

    def _tick(self) -> None:
        now = time.monotonic()
        for connection in [each for each in self._connections if each.due <= now]:
            connection.expire()
        self._ticking = bool(self._connections)
        if self._ticking:
            asyncio.get_running_loop().call_later(_TICK_S, self._tick)
