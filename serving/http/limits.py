"""Limits what the connections of a port use together, and ends those that take too long, by one clock."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from typing import Protocol

from serving.config import ServerConfig
from serving.errors import BodyTooLarge
from serving.http.turns import Turns
from serving.native_path.options import spare_descriptors, too_many_bytes, too_many_connections, too_many_of_address
from storage.errors import Overloaded

KEEP_ALIVE_S = 75.0
NEVER = float("inf")
_TICK_S = 0.25
#: A client that is waited for longer than this is stuck; shorter where `body_timeout_s` is.
STUCK_S = 5.0


class Timed(Protocol):
    """Is a connection that HttpLimits watches. Its times are those of `time.monotonic`."""

    #: The address of its other end, by which connections are counted; "" for none.
    address: str
    #: When it has waited too long; NEVER while the server is at work.
    due: float
    #: Since when no request's head has been complete; NEVER from a complete head until its answer has been sent, also
    #: if that is before the body is here.
    idle_since: float

    def expire(self) -> None:
        """Handles the time-out; called when the connection is due, or up to a tick later."""

    def give_way(self) -> None:
        """Ends the connection at once: it is idle, and others wait to connect."""


class HttpLimits:
    """Counts the connections and bytes of a port against its limits. Not thread-safe: one event loop uses it.

    A request's body has at most `max_body` bytes; all bodies that are read or held together stay below
    max_inflight_bytes. Bytes that clients send ahead of their answers have a bound of their own, a quarter of that:
    they need no token, so they must not use up the memory for bodies.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.max_body = config.max_body_bytes
        self.body_timeout_s = config.body_timeout_s
        self.turns = Turns()
        #: Whether each connection ends with its next answer, because the server is about to stop.
        self.is_retiring = False
        self._max_inflight = config.max_inflight_bytes
        self._max_connections = config.max_connections
        self._max_of_address = config.connections_per_address
        self._last_descriptor = spare_descriptors()
        self._held = self._unread = 0
        self._connections: set[Timed] = set()
        self._by_address: dict[str, set[Timed]] = {}
        self._ticking = False
        #: Connections whose client is stuck, by its address; replaced at each tick.
        self.stuck: dict[str, int] = {}

    @property
    def open(self) -> int:
        """The number of connections. Any thread may read it."""
        return len(self._connections)

    def add(self, connection: Timed, descriptor: int = -1) -> None:
        """Watches a connection until `remove`. Raises Overloaded if there are too many and all are at work.

        descriptor: of its socket; connections may not use the last files that the process may open.
        """
        others = self._by_address.get(connection.address, set())
        if len(others) >= self._max_of_address and not self._make_room(others, self._max_of_address):
            raise too_many_of_address(self._max_of_address)
        is_full = len(self._connections) >= self._max_connections or descriptor >= self._last_descriptor
        if is_full and not self._make_room(self._connections, self._max_connections):
            raise too_many_connections()
        self._connections.add(connection)
        self._by_address.setdefault(connection.address, set()).add(connection)
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def remove(self, connection: Timed) -> None:
        """Stops watching a connection that has ended."""
        self._connections.discard(connection)
        others = self._by_address.get(connection.address)
        if others is not None:
            others.discard(connection)
            if not others:
                del self._by_address[connection.address]

    def hold(self, size: int) -> None:
        """Counts bytes of a body until `release`. Raises Overloaded."""
        if self._held + size > self._max_inflight:
            raise too_many_bytes(self._max_inflight)
        self._held += size

    def release(self, size: int) -> None:
        """Stops counting bytes that were held."""
        self._held -= size

    def hold_unread(self, size: int) -> None:
        """Counts bytes that wait unparsed until `release_unread`. Raises Overloaded."""
        if self._unread + size > self._max_inflight // 4:
            raise Overloaded("too much is sent ahead of its answers; wait for each answer, or try later")
        self._unread += size

    def release_unread(self, size: int) -> None:
        """Stops counting bytes that waited unparsed."""
        self._unread -= size

    def too_large(self, got: str) -> BodyTooLarge:
        """Returns the error for a body that is over the limit. got: its size."""
        return BodyTooLarge(
            f"the body has {got} bytes, at most {self.max_body} are taken; send smaller batches, or start the server "
            "with a larger max_body_bytes",
            field="body",
        )

    def _make_room(self, connections: set[Timed], bound: int) -> bool:
        """Ends the connections that have been idle for longest, several at a time: finding them means checking all."""
        idle = [each for each in connections if each.idle_since < NEVER]
        for connection in heapq.nsmallest(max(1, bound // 64), idle, key=lambda each: each.idle_since):
            self.remove(connection)
            connection.give_way()
        return bool(idle)

    def _is_stuck(self, connection: Timed, now: float) -> bool:
        """Returns whether its client has for a while sent a part of a request, or not read an answer."""
        is_idle = connection.due == connection.idle_since + KEEP_ALIVE_S
        since = NEVER if is_idle else connection.due - self.body_timeout_s
        return since <= now - min(STUCK_S, self.body_timeout_s / 2)

    def _tick(self) -> None:
        now = time.monotonic()
        for connection in [each for each in self._connections if each.due <= now]:
            connection.expire()
        self.stuck = dict(Counter(each.address for each in self._connections if self._is_stuck(each, now)))
        self._ticking = bool(self._connections)
        if self._ticking:
            asyncio.get_running_loop().call_later(_TICK_S, self._tick)
