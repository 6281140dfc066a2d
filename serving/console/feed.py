"""Sends the state of the server to the pages that show it: one producer for all of them, a bounded queue for each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from functools import partial

from serving.console.state import Look, Seen
from serving.control.calls import ControlCalls
from serving.engine.statistics import FINE_BUCKETS_MS
from serving.http.port_connections import ConnectionCounts, stuck_clients
from serving.protocol.json_text import dump_json
from serving.security.gate import Gate
from serving.security.needs import WATCH
from serving.security.principals import READ, ROLES, Caller, Principal
from serving.version import server_version
from storage.errors import EmberlineError, Overloaded, Unavailable

logger = logging.getLogger("emberline.serving")

#: Pages that may be connected at a time.
MAX_PAGES = 32
#: Seconds between two looks at the server.
TICK_S = 1.0
# A new page gets its first events at once, but not more often than this.
_SOONEST_S = 0.1


class Page:
    """The events for one page. Implements Parts.

    Of each kind of event the newest is kept until it is sent, so a client that reads slowly misses some in between, and
    one that does not read costs the memory of a few events. One event loop uses it.
    """

    def __init__(self, feed: Feed, watched: str, authorization: bytes | None, caller: Caller) -> None:
        self.watched = watched
        self.authorization = authorization
        self.caller = caller
        self._feed = feed
        self._waiting: dict[str, bytes] = {}
        self._sent: dict[str, bytes] = {}
        self._is_ended = False
        self._changed = asyncio.Event()

    def offer(self, event: str, data: bytes) -> None:
        """Lets an event be sent, unless the page has it already. data: JSON."""
        if self._sent.get(event) == data:
            self._waiting.pop(event, None)
        elif not self._is_ended:
            self._waiting[event] = data
            self._changed.set()

    def end(self) -> None:
        """Ends the stream when what waits has been sent."""
        self._is_ended = True
        self._changed.set()

    async def next(self) -> bytes:
        """See Parts."""
        while not (self._waiting or self._is_ended):
            self._changed.clear()
            await self._changed.wait()
        waiting, self._waiting = self._waiting, {}
        self._sent.update(waiting)
        return b"".join(b"event: %b\ndata: %b\n\n" % (event.encode(), data) for event, data in waiting.items())

    def close(self) -> None:
        """See Parts."""
        self.end()
        self._feed.leave(self)


class Feed:
    """Looks at the server as long as pages are connected, and offers each of them what its caller may see.

    One event loop uses it. look: it is called on threads, also by the slower one of two calls.
    """

    def __init__(self, gate: Gate, look: Look, connections: ConnectionCounts = tuple) -> None:
        """connections: returns those of each port."""
        self._connections = connections
        self._gate = gate
        self._look = look
        self._calls = ControlCalls(limit=2)
        self._pages: set[Page] = set()
        self._task: asyncio.Task[None] | None = None
        self._slow_task: asyncio.Task[None] | None = None
        self._slow: dict[tuple[str, str], bytes] = {}
        self._wake = asyncio.Event()
        self._is_closed = False
        # By which pages see that another process answers, whose counts begin at 0.
        self._run_id = secrets.token_hex(8)

    def join(self, watched: str, authorization: bytes | None, caller: Caller) -> Page:
        """Connects a page. watched: the model that it shows in detail, "" for none.

        Raises Overloaded when there are MAX_PAGES, Unavailable when the server stops.
        """
        if self._is_closed:
            raise Unavailable("the server is shutting down")
        if len(self._pages) >= MAX_PAGES:
            raise Overloaded(f"{MAX_PAGES} pages of the console are open already; close one")
        page = Page(self, watched, authorization, caller)
        self._pages.add(page)
        self._wake.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._produce())
        return page

    def leave(self, page: Page) -> None:
        """Disconnects a page."""
        self._pages.discard(page)
        self._wake.set()

    def close(self) -> None:
        """Ends all streams: the server stops."""
        self._is_closed = True
        for page in self._pages:
            page.offer("stopping", b"{}")
            page.end()

    async def _produce(self) -> None:
        try:
            while self._pages:
                self._wake.clear()
                watched = frozenset(page.watched for page in self._pages if page.watched)
                if self._slow_task is None:
                    self._slow_task = asyncio.get_running_loop().create_task(self._produce_slowly(watched))
                try:
                    seen = await self._calls.run(partial(self._look.now, watched))
                except Exception:
                    logger.exception("the console could not look at the server")
                else:
                    server = self._server()
                    for page in list(self._pages):
                        self._offer(page, seen, server)
                await asyncio.sleep(_SOONEST_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), TICK_S - _SOONEST_S)
        finally:
            self._task = None

    async def _produce_slowly(self, watched: frozenset[str]) -> None:
        before = set(self._slow)
        try:
            self._slow = await self._calls.run(partial(self._look.slowly, watched))
        except Exception:
            logger.exception("the console could not look at the memory of the models")
        finally:
            self._slow_task = None
        if set(self._slow) - before:
            self._wake.set()  # what a page has waited for

    def _server(self) -> bytes:
        """Returns the event about the server as a whole, for callers that are allowed to see all models."""
        stuck = stuck_clients(self._connections())
        return dump_json({"stuck": [{"transport": by, "client": who, "connections": n} for by, who, n in stuck]})

    def _offer(self, page: Page, seen: Seen, server: bytes) -> None:
        """Offers a page what its caller may see now: tokens expire, and access files change."""
        try:
            principal = self._gate.identify(WATCH, page.authorization, page.caller)
        except EmberlineError as error:
            page.offer("refused", dump_json({"error": str(error)}))
            page.end()
            return
        page.offer("hello", self._hello(principal))
        lines = b",".join(line for name, line in seen.models.items() if principal.covers(name))
        if principal.is_for_all:
            page.offer("server", server)
        page.offer("models", b'{"at_ms":%.3f,"models":[%b]}' % (seen.at_ms, lines))
        if not page.watched:
            return
        if not (page.watched in seen.models and principal.covers(page.watched)):
            # The same for one that does not exist and one that the caller may not see; anew each time it is missing.
            page.offer("missing", dump_json({"name": page.watched, "at_ms": seen.at_ms}))
            return
        for (event, name), data in [*seen.events.items(), *self._slow.items()]:
            if name == page.watched:
                page.offer(event, data)

    def _hello(self, principal: Principal) -> bytes:
        roles = [name for name, bits in ROLES.items() if principal.roles & (bits & ~READ or bits)]
        return dump_json(
            {
                "run": self._run_id,
                "version": server_version(),
                "latency_bounds_ms": FINE_BUCKETS_MS,
                "you": {
                    "name": principal.name,
                    "is_known": principal.is_known,
                    "roles": roles,
                    "models": None if principal.is_for_all else list(principal.models),
                },
            }
        )
