"""HTTP/1.1 for uvicorn's server: parsed by httptools, one response one write, nothing on the way that inference lacks.

uvicorn's own protocol gathers a body by copying it again for each piece, checks every header of a response by two
regular expressions, writes head and body apart, and makes an event and several dictionaries a request. Here a request
is refused before its body is read where the application says so, bodies and heads are bounded in bytes and in time, and
a client that goes away cancels its request.
"""

from __future__ import annotations

import asyncio
import http
import time
import urllib.parse
from collections import deque
from typing import Any

import httptools

from serving.errors import BodyTooLarge
from serving.http.limits import KEEP_ALIVE_S, MAX_HEADER_BYTES, MAX_HEADERS, NEVER, HttpLimits
from serving.http.messages import HttpApplication, HttpRequest, HttpResponse, error_response
from serving.security.principals import NOBODY, Connection
from serving.security.tls import common_name
from storage.errors import EmberlineError, InvalidInput, Overloaded, Unavailable

# Requests that a client may send before the one ahead of them was answered.
_MAX_PIPELINED = 4
# Those behind them that the same read brought; one more, and the connection ends.
_MAX_WAITING = 128
# From here on head and body are handed over apart, which spares a copy of the body.
_APART_BYTES = 16 << 10
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus}
# Twice in a request, they say two things to whoever reads the first or the last.
_ONCE = frozenset((b"authorization", b"content-encoding", b"inference-header-content-length"))
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Exchange:
    """A request while it arrives and is answered.

    refused: the response to one that nobody has to look at. is_answered: it has been sent, before the body was here.
    """

    __slots__ = ("chunks", "held", "is_answered", "keep_alive", "limits", "refused", "request", "speaks_1_0")

    def __init__(self, request: HttpRequest, limits: HttpLimits, keep_alive: bool, speaks_1_0: bool) -> None:
        self.request = request
        self.limits = limits
        self.keep_alive = keep_alive
        self.speaks_1_0 = speaks_1_0
        self.chunks: list[bytes] = []
        self.held = 0
        self.refused: HttpResponse | None = None
        self.is_answered = False
        request.room = self

    @property
    def max_body(self) -> int:
        """See BodyRoom."""
        return self.limits.max_body

    def hold(self, size: int) -> None:
        """See BodyRoom."""
        self.limits.hold(size)
        self.held += size

    def too_large(self, got: str) -> BodyTooLarge:
        """See BodyRoom."""
        return self.limits.too_large(got)


class HttpProtocol(asyncio.Protocol):
    """One connection. Its arguments are those of uvicorn's protocols, and what it is for."""

    def __init__(
        self,
        config: Any,
        server_state: Any,
        app_state: Any,
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        app: HttpApplication,
        limits: HttpLimits,
    ) -> None:
        self.due = NEVER
        self.idle_since = NEVER
        self._app = app
        self._limits = limits
        self._loop = _loop or asyncio.get_running_loop()
        self._connections: set[Any] = server_state.connections
        self._tasks: set[asyncio.Task[None]] = server_state.tasks
        self._transport: Any = None
        self._parser = httptools.HttpRequestParser(self)
        self._caller = NOBODY
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        # Of the head that arrives: what was parsed, what was read since, and what is wrong with it.
        self._head_bytes = 0
        self._head_read = 0
        self._head_count = 0
        self._head_fault: tuple[EmberlineError, int] | None = None
        self._unsent = 0
        self._arriving: _Exchange | None = None
        self._waiting: deque[_Exchange] = deque()
        self._active: _Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._is_full = False
        self._in_head = False

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here."""
        self._transport = transport
        if not self._limits.add(self):
            self._answer_nothing(error_response(Overloaded("too many connections are open; try later")))
            return
        self._connections.add(self)
        peer = transport.get_extra_info("peername")
        name = common_name(transport.get_extra_info("ssl_object"))
        self._caller = Connection(str(peer[0]) if isinstance(peer, tuple) else "", name)
        self.idle_since = time.monotonic()
        self.due = self.idle_since + KEEP_ALIVE_S

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone; nobody waits for its requests any more."""
        self._connections.discard(self)
        self._limits.remove(self)
        self.due = self.idle_since = NEVER
        for exchange in (self._arriving, *self._waiting):
            if exchange is not None:
                self._release(exchange)
        self._arriving = None
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        while data and not self._transport.is_closing():
            was_in_head = self._in_head
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # Another protocol was offered; this one is spoken on.
                self._parser = httptools.HttpRequestParser(self)
                data = data[upgrade.args[0] :] if upgrade.args else b""
                continue
            except httptools.HttpParserError as error:
                if not self._transport.is_closing():
                    self._give_up(InvalidInput(f"this is not HTTP/1.1: {error}", field="request"))
                return
            if was_in_head and self._in_head:
                # A header that does not end is known to the parser alone.
                self._head_read += len(data)
                if self._head_read > MAX_HEADER_BYTES:
                    self._give_up(_long_head(), 431)
            return

    def pause_writing(self) -> None:
        """The client does not read its responses: it gets no further one, and has to read on."""
        self._is_full = True
        self._watch_unsent()

    def resume_writing(self) -> None:
        """It reads again."""
        self._is_full = False
        if self._active is not None and not self._transport.is_closing():
            self.due = NEVER
        self._next()

    # uvicorn

    def shutdown(self) -> None:
        """The server stops: what was begun is answered."""
        self._is_stopping = True
        if self._active is None and not self._waiting and self._arriving is None:
            self._close()

    # limits

    def expire(self) -> None:
        """A request does not arrive, a response is not read, or for long there has been neither."""
        if self._is_full or self._transport.is_closing():
            if self._transport.get_write_buffer_size() < self._unsent:
                self._watch_unsent()
            else:
                self._transport.abort()
        elif self._arriving is not None or self._in_head:
            self._give_up(
                InvalidInput(f"the body did not arrive within {self._limits.body_timeout_s:g} s", field="body")
            )
        elif self._active is not None or self._waiting:
            self.due = NEVER  # all that was sent is here, and is worked on
        else:
            self._close()

    def give_way(self) -> None:
        """See Timed."""
        self._transport.abort()

    # httptools

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url = b""
        self._headers = {}
        self._in_head = True
        self._head_bytes = self._head_read = self._head_count = 0
        self._head_fault = None
        if not self._is_full:
            self.due = time.monotonic() + self._limits.body_timeout_s

    def on_url(self, url: bytes) -> None:
        """A piece of its target."""
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        name = name.lower()
        if name in self._headers and name in _ONCE:
            self._head_fault = InvalidInput(f"the header {name.decode()} came twice", field="headers"), 400
        self._headers[name] = value
        self._head_count += 1
        if self._head_count > MAX_HEADERS:
            self._head_fault = InvalidInput(f"there are over {MAX_HEADERS} headers", field="headers"), 431
        self._count_head(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        """The head is whole: the request is admitted, or refused before its body is read."""
        self._in_head = False
        self.idle_since = NEVER
        parser = self._parser
        version = parser.get_http_version()
        keep_alive = parser.should_keep_alive()
        path, query = _target(self._url)
        request = HttpRequest(parser.get_method().decode("ascii"), path, query, self._headers, caller=self._caller)
        exchange = self._arriving = _Exchange(request, self._limits, keep_alive, version == "1.0")
        declared = self._headers.get(b"content-length")
        if self._head_fault is not None:
            fault, status = self._head_fault
            self._refuse(exchange, error_response(fault, status=status))
            return
        try:
            if declared is not None and int(declared) > self._limits.max_body:
                raise self._limits.too_large(declared.decode("latin-1")[:40])
            self._app.admit(request)
        except Exception as error:
            self._refuse(exchange, error_response(error))
            return
        is_first = self._active is None and not self._waiting
        if b"expect" in self._headers and self._headers[b"expect"].lower() == b"100-continue" and is_first:
            self._transport.write(_CONTINUE)

    def on_body(self, chunk: bytes) -> None:
        """A piece of its body."""
        exchange = self._arriving
        if exchange is None or exchange.refused is not None:
            return
        size = len(chunk)
        try:
            if exchange.held + size > self._limits.max_body:
                raise self._limits.too_large(f"over {self._limits.max_body}")
            exchange.hold(size)
        except Exception as error:
            self._refuse(exchange, error_response(error))
            return
        exchange.chunks.append(chunk)

    def on_message_complete(self) -> None:
        """The request is whole."""
        exchange, self._arriving = self._arriving, None
        self._in_head = False
        if exchange is None:
            return
        if exchange.refused is not None:
            if exchange.is_answered:
                self._rest()
                return
        else:
            chunks = exchange.chunks
            exchange.request.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            exchange.chunks = []
        if self._active is None and not self._waiting and not self._is_full:
            self._start(exchange)
            return
        self._waiting.append(exchange)
        if len(self._waiting) > _MAX_WAITING:
            self._transport.abort()
        elif len(self._waiting) >= _MAX_PIPELINED:
            self._transport.pause_reading()

    # the way of an exchange

    def _start(self, exchange: _Exchange) -> None:
        if not self._is_full:
            self.due = NEVER
        if exchange.refused is not None:
            self._send(exchange, exchange.refused)
            self._next()
            return
        self._active = exchange
        task = self._task = self._loop.create_task(self._run(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, exchange: _Exchange) -> None:
        try:
            response = await self._app.answer(exchange.request)
        except asyncio.CancelledError:
            # The client has gone; or the server stops and will not wait any longer.
            response = error_response(Unavailable("the server is shutting down"))
        except Exception as error:
            response = error_response(error)
        finally:
            self._release(exchange)
        self._active = self._task = None
        self._send(exchange, response)
        self._next()

    def _next(self) -> None:
        if self._active is not None or self._is_full or self._transport.is_closing():
            return
        if self._waiting:
            if len(self._waiting) == _MAX_PIPELINED:
                self._transport.resume_reading()
            self._start(self._waiting.popleft())
        elif self._arriving is None and not self._in_head:
            self._rest()
        else:
            # The next request has begun to arrive behind this one; its time counts from now.
            self.due = time.monotonic() + self._limits.body_timeout_s

    def _rest(self) -> None:
        """Nothing is to be done: the next request may come, for a while."""
        if self._is_stopping and self._active is None and not self._waiting:
            self._close()
        elif self._active is None:
            self.idle_since = time.monotonic()
            if not self._is_full:
                self.due = self.idle_since + KEEP_ALIVE_S

    def _send(self, exchange: _Exchange, response: HttpResponse) -> None:
        transport = self._transport
        if transport.is_closing():
            return
        content = response.content
        head = [_STATUS_LINES[response.status], b"content-length: %d\r\n" % len(content)]
        for name, value in response.headers:
            head += (name, b": ", value, b"\r\n")
        keep_alive = exchange.keep_alive and not (self._is_stopping or response.closes)
        if not keep_alive:
            head.append(b"connection: close\r\n")
        elif exchange.speaks_1_0:
            head.append(b"connection: keep-alive\r\n")
        head.append(b"\r\n")
        if exchange.request.method == "HEAD":
            content = b""
        if len(content) < _APART_BYTES:
            head.append(content)
            transport.write(b"".join(head))
        else:
            transport.writelines((b"".join(head), content))
        if not keep_alive:
            self._close()

    def _refuse(self, exchange: _Exchange, response: HttpResponse) -> None:
        """Answers before the body is here, where nothing is ahead; what comes of the body is dropped."""
        self._release(exchange)
        exchange.refused = response
        exchange.chunks = []
        if self._active is None and not self._waiting and not self._is_full:
            exchange.is_answered = True
            self._send(exchange, response)

    def _give_up(self, error: InvalidInput, status: int = 400) -> None:
        """Answers what cannot be read any further, and closes."""
        exchange = self._arriving
        if exchange is not None:
            self._release(exchange)
            self._arriving = None
        self._in_head = False
        if self._active is None and not self._waiting and (exchange is None or exchange.refused is None):
            self._answer_nothing(error_response(error, status=status))
        self._close()

    def _answer_nothing(self, response: HttpResponse) -> None:
        """Answers where nobody asked, as the last thing on the connection."""
        self._send(_Exchange(HttpRequest("", "", b"", {}), self._limits, False, False), response)

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEADER_BYTES:
            self._head_fault = _long_head(), 431

    def _watch_unsent(self) -> None:
        """Gives the client time to read what is left; it has more when some of it has gone meanwhile."""
        self._unsent = self._transport.get_write_buffer_size()
        self.due = time.monotonic() + self._limits.body_timeout_s

    def _close(self) -> None:
        """Ends the connection when what was written has been read."""
        self._transport.close()
        self.idle_since = NEVER
        self._watch_unsent()

    def _release(self, exchange: _Exchange) -> None:
        self._limits.release(exchange.held)
        exchange.held = 0
        exchange.request.room = None  # else the two hold each other, and the body


def _long_head() -> InvalidInput:
    return InvalidInput(f"the head of the request is over {MAX_HEADER_BYTES} bytes", field="headers")


def _target(url: bytes) -> tuple[str, bytes]:
    """Path and query of a request's target."""
    if b"?" not in url and b"%" not in url and url.startswith(b"/"):
        return url.decode("latin-1"), b""
    parsed = httptools.parse_url(url)
    path = (parsed.path or b"/").decode("latin-1")
    return (urllib.parse.unquote(path) if "%" in path else path), parsed.query or b""
