"""Implements HTTP/1.1 for uvicorn's server: httptools parses, a response is one write, and only what inference needs.

uvicorn's own protocol copies the body again for each piece, checks every header of a response by two regular
expressions, writes head and body apart, and makes an event and several dictionaries for each request. Here a request
is refused before its body is read where the application says so, bodies and heads are bounded in bytes and in time, and
a client that disconnects cancels its request.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

import httptools

from serving.http.exchange import Exchange, begin_exchange, response_head, write_response
from serving.http.head import MAX_HEADER_BYTES, RequestHead, unreadable
from serving.http.limits import KEEP_ALIVE_S, NEVER, HttpLimits
from serving.http.messages import HttpApplication, HttpRequest, HttpResponse, error_response
from serving.http.unread import PIECES_AT_ONCE, StopParsing, Unread
from serving.native_path.options import late_body
from serving.security.principals import NOBODY, Connection
from serving.security.rates import client_of
from serving.security.tls import common_name
from storage.errors import EmberlineError, InvalidInput, Overloaded, Unavailable

# With more unread bytes than this, nothing further is read from the client.
_MAX_UNREAD_BYTES = 64 << 10
# How long, and how many bytes, a client whose request was refused may go on sending before the connection is closed.
LINGER_S, _LINGER_BYTES = 2.0, 64 << 20
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpProtocol(asyncio.Protocol):
    """Handles one connection. Its arguments are those of uvicorn's protocols, the application and the limits."""

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
        self.address = ""
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
        self._head = RequestHead()
        self._unsent = 0
        # Bytes read since the last end of a head or piece of a body.
        self._overhead = 0
        self._is_tls = False
        self._arriving: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._unread = Unread(limits)
        # Bytes left of the body that arrives, where its length was declared.
        self._body_left = 0
        self._completed = 0
        self._active: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._is_full = False
        self._in_head = False
        # The request offers another protocol: httptools ends it with its head, and another parser reads its body.
        self._is_offer = False
        self._in_offered_head = False
        # The rest of a refused body is not parsed; then the connection ends.
        self._is_deaf, self._unheard = False, 0
        # Further bytes cannot be parsed as HTTP.
        self._is_broken = False

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to serve a client."""
        self._transport = transport
        handshake = transport.get_extra_info("ssl_object")
        self._is_tls = handshake is not None
        end = transport.get_extra_info("socket")
        peer = transport.get_extra_info("peername")
        given = str(peer[0]) if isinstance(peer, tuple) else ""
        self.address = client_of(given)
        self._caller = Connection(given, common_name(handshake))
        try:
            self._limits.add(self, -1 if end is None else end.fileno())
        except Overloaded as error:
            self._send(self._nothing(), error_response(error))
            self._loop.call_later(LINGER_S, self._transport.abort)  # the limits do not watch it
            return
        self._connections.add(self)
        self.idle_since = time.monotonic()
        self.due = self.idle_since + KEEP_ALIVE_S

    def connection_lost(self, exc: Exception | None) -> None:
        """Frees everything and cancels the running request when the client has disconnected."""
        self._connections.discard(self)
        self._limits.remove(self)
        self.due = self.idle_since = NEVER
        for exchange in (self._arriving, *self._waiting):
            if exchange is not None:
                exchange.release()
        self._arriving = None
        self._waiting.clear()
        self._unread.keep(b"")
        if self._task is not None:
            self._task.cancel()
        # The parser refers to this connection, and the cycle would keep both until a full garbage collection.
        del self._parser

    def data_received(self, data: bytes) -> None:
        """Takes bytes of requests."""
        if self._is_deaf:
            self._unheard += len(data)
            if self._unheard > _LINGER_BYTES:
                self._close()
            return
        if self._unread.data:
            self._keep_unread(self._unread.data + data)
        else:
            self._read(data)

    def _read(self, data: bytes) -> None:
        """Parses one request, or the part of it that has arrived; the bytes after it wait unread until their turn."""
        at = pieces = 0
        completed = self._completed
        while at < len(data) and not (self._is_broken or self._is_deaf or self._transport.is_closing()):
            if self._is_behind():
                self._keep_unread(data[at:])
                return
            if self._completed != completed or pieces == PIECES_AT_ONCE:
                self._keep_unread(data[at:])
                self._limits.turns.soon(self._go_on)
                return
            end = self._unread.piece_end(data, at, self._body_left if self._arriving is not None else 0)
            at += self._feed(data if (at, end) == (0, len(data)) else memoryview(data)[at:end])
            pieces += 1
            if self._completed != completed and self._parser.get_method() == b"HEAD":
                self._parser = httptools.HttpRequestParser(self)  # else it reports HEAD for the next request, too
        self._unread.consumed(data)
        self._pace_reading()

    def _is_behind(self) -> bool:
        """Returns whether new bytes have to wait for earlier requests, or for the client to read."""
        is_between = self._arriving is None and not self._in_head
        return self._active is not None or bool(self._waiting) or (self._is_full and is_between)

    def _feed(self, piece: bytes | memoryview) -> int:
        """Parses a piece and returns how many bytes were consumed."""
        self._overhead += len(piece)
        try:
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                self._read_offered_body()
                return int(upgrade.args[0])
        except httptools.HttpParserError as error:
            if not (self._is_deaf or self._transport.is_closing()):
                self._give_up(*unreadable(self._head if self._in_head else None, error))
            return len(piece)
        # A head, a trailer or a chunk's extension does not end; the parser keeps all of it in memory.
        if self._overhead > MAX_HEADER_BYTES and (self._in_head or self._arriving is not None):
            self._give_up(*unreadable(self._head if self._in_head else None, None))
        return len(piece)

    def _keep_unread(self, data: bytes) -> None:
        """Keeps bytes that are to be parsed later."""
        try:
            self._unread.keep(data)
        except Overloaded as error:
            self._give_up(error, 503)
            return
        self._pace_reading()

    def _pace_reading(self) -> None:
        """Reads on while little is unread, since only a read notices that the client disconnects; otherwise pauses."""
        if self._is_broken or self._transport.is_closing():
            return
        if len(self._unread.data) > _MAX_UNREAD_BYTES:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _read_offered_body(self) -> None:
        """Continues after the head of a request that offers another protocol, with HTTP/1.1 (RFC 9110, 7.8)."""
        self._parser = httptools.HttpRequestParser(self)
        if self._is_offer:
            self._is_offer = False
            self._in_offered_head = True
            self._parser.feed_data(b"POST / HTTP/1.1\r\n" + self._head.framing + b"\r\n")

    def pause_writing(self) -> None:
        """Sends no further response while the client does not read, and gives it time to read on."""
        self._is_full = True
        self._watch_unsent()

    def resume_writing(self) -> None:
        """Continues when the client reads again."""
        self._is_full = False
        if self._active is not None and not self._transport.is_closing():
            self.due = NEVER
        self._next()

    # uvicorn

    def shutdown(self) -> None:
        """Closes the connection when the server stops, after the requests that were begun are answered."""
        self._is_stopping = True
        if self._active is None and not (self._waiting or self._unread.data) and self._arriving is None:
            self._close()

    @property
    def is_at_rest(self) -> bool:
        """Returns whether no request has begun to arrive, and the system has all bytes of all responses."""
        is_busy = self._active is not None or self._arriving is not None or self._in_head
        ends = self._is_stopping or self._is_deaf or self._is_broken or self._transport.is_closing()
        is_idle = not (is_busy or ends or self._waiting or self._unread.data)
        return is_idle and self._transport.get_write_buffer_size() == 0

    # limits

    def expire(self) -> None:
        """Ends a connection whose request does not arrive, whose response is not read, or that is idle for too long."""
        if self._is_full or self._transport.is_closing():
            if self._transport.get_write_buffer_size() < self._unsent:
                self._watch_unsent()
            else:
                self._transport.abort()
        elif not self._unread.data and (self._arriving is not None or self._in_head):
            self._give_up(late_body(self._limits.body_timeout_s))
        elif self._active is not None or self._waiting or self._unread.data:
            self.due = NEVER  # everything that was sent has arrived and is being answered
        else:
            self._close()

    def give_way(self) -> None:
        """See Timed."""
        self._transport.abort()

    # httptools

    def on_message_begin(self) -> None:
        """Begins a request."""
        if self._in_offered_head:
            return
        self._head = RequestHead()
        self._in_head = True
        self._overhead = 0
        if not self._is_full:
            self.due = time.monotonic() + self._limits.body_timeout_s

    def on_url(self, url: bytes) -> None:
        """Adds a piece of the request's target."""
        self._head.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Adds one header. Drops trailers, so that the headers stay as they were checked."""
        if self._in_head:
            self._head.add_header(name, value)

    def on_headers_complete(self) -> None:
        """Admits a request whose head is complete, or refuses it before its body is read."""
        if self._in_offered_head:
            self._in_offered_head = False
            return
        self._in_head = False
        self._overhead = 0
        self.idle_since = NEVER
        parser = self._parser
        method = parser.get_method()
        if method == b"CONNECT":  # the following bytes would be for another server
            self._give_up(InvalidInput("CONNECT is not served: this is no proxy", field="method"), 501)
            return
        self._is_offer = parser.should_upgrade()
        version = parser.get_http_version()
        head = self._head
        exchange, fault = begin_exchange(head, method, version, self._limits, self._caller)
        exchange.keep_alive = parser.should_keep_alive()
        self._arriving, request = exchange, exchange.request
        declared = head.headers.get(b"content-length")
        self._body_left = 0 if declared is None else int(declared)
        if fault is not None:
            # A proxy in front of this server may have parsed it differently, and so the bytes after it.
            exchange.keep_alive = False
            self._refuse(exchange, error_response(fault[0], status=fault[1]))
            self._stop_listening(exchange)
            return
        try:
            if declared is not None and int(declared) > self._limits.max_body:
                raise self._limits.too_large(declared.decode("latin-1")[:40])
            self._app.admit(request)
        except Exception as error:
            if b"transfer-encoding" in head.headers:
                exchange.keep_alive = False
            self._refuse(exchange, error_response(error))
            self._stop_listening(exchange)
            return
        if version == "1.1" and head.expects_continue:
            self._transport.write(_CONTINUE)

    def on_body(self, chunk: bytes) -> None:
        """Adds a piece of the request's body."""
        self._overhead = 0
        exchange = self._arriving
        if exchange is None:
            return
        size = len(chunk)
        self._body_left = max(0, self._body_left - size)
        if exchange.refused is not None:
            exchange.dropped += size
            if exchange.dropped > max(2 * self._limits.max_body, _LINGER_BYTES):
                self._close()
            return
        try:
            if exchange.held + size > self._limits.max_body:
                raise self._limits.too_large(f"over {self._limits.max_body}")
            exchange.keep(chunk)
        except Exception as error:
            self._refuse(exchange, error_response(error))

    def on_message_complete(self) -> None:
        """Starts or queues a request that is complete."""
        if self._is_offer:
            return
        self._completed += 1
        exchange, self._arriving = self._arriving, None
        self._in_head = False
        if exchange is None:
            return
        if exchange.refused is not None:
            if exchange.is_answered:
                if exchange.is_last:
                    self._close()
                else:
                    self._rest()
                return
        else:
            exchange.whole()
        if self._is_full:
            self._waiting.append(exchange)
        else:
            self._start(exchange)

    # from request to response

    def _start(self, exchange: Exchange) -> None:
        if not self._is_full:
            self.due = NEVER
        if exchange.refused is not None:
            self._send(exchange, exchange.refused)
            self._next()
            return
        response = self._app.answer_at_once(exchange.request)
        if response is not None:
            exchange.release()
            self._send(exchange, response)
            self._next()
            return
        self._active = exchange
        task = self._task = self._loop.create_task(self._run(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, exchange: Exchange) -> None:
        try:
            response = await self._app.answer(exchange.request)
        except asyncio.CancelledError:
            # The client has disconnected, or the server stops and does not wait any longer.
            response = error_response(Unavailable("the server is shutting down"))
        except Exception as error:
            response = error_response(error)
        finally:
            exchange.release()
        self._active = self._task = None
        self._send(exchange, response)
        self._next()

    def _next(self) -> None:
        if self._active is not None or self._is_full or self._transport.is_closing():
            return
        if self._waiting or self._unread.data:
            self._limits.turns.soon(self._go_on)
        else:
            self._await_more()

    def _go_on(self) -> None:
        """Starts the next waiting request if nothing is ahead of it any more, and reads on."""
        if self._transport.is_closing():
            return
        if self._waiting and self._active is None and not self._is_full:
            self._start(self._waiting.popleft())
        if self._unread.data and not self._is_behind():
            self._read(self._unread.data)
        if not (self._active or self._waiting or self._unread.data or self._is_full or self._transport.is_closing()):
            self._await_more()

    def _await_more(self) -> None:
        """Waits for more bytes: a further request, or the rest of one that has begun to arrive."""
        if self._arriving is None and (self._is_stopping or not self._in_head):
            self._rest()
            return
        if self._arriving is None:
            self.idle_since = time.monotonic()
        if self.due == NEVER:  # else its time has been running since it began
            self.due = time.monotonic() + self._limits.body_timeout_s

    def _rest(self) -> None:
        """Waits for the next request, until the keep-alive time has passed."""
        if self._is_stopping and self._active is None and not self._waiting:
            self._close()
        elif self._active is None:
            self.idle_since = time.monotonic()
            if not self._is_full:
                self.due = self.idle_since + KEEP_ALIVE_S

    def _send(self, exchange: Exchange, response: HttpResponse) -> None:
        transport = self._transport
        self._app.ended(exchange.request, response, is_sent=not transport.is_closing())
        if transport.is_closing():
            return
        keep_alive = exchange.keep_alive and not (self._is_stopping or self._limits.is_retiring or response.closes)
        head = response_head(response, exchange, keep_alive)
        content = b"" if exchange.is_head else response.content
        write_response(transport, b"".join(head), content, is_tls=self._is_tls)
        if exchange is self._arriving:
            # The answer was sent before the body is here, so this connection may be ended if others wait to connect.
            self.idle_since = time.monotonic()
        if not keep_alive:
            if exchange is self._arriving:
                # Closing now would lose the answer for a client that still sends, so it may send on for a while.
                exchange.is_last = True
                self.due = time.monotonic() + LINGER_S
            else:
                self._close()

    def _refuse(self, exchange: Exchange, response: HttpResponse) -> None:
        """Refuses a request; answers before its body is here if the client reads, and drops the body."""
        exchange.release()
        exchange.refused = response
        exchange.chunks = []
        if not self._is_full:
            exchange.is_answered = True
            self._send(exchange, response)

    def _stop_listening(self, exchange: Exchange) -> None:
        """Stops parsing a refused body in chunks, because parsing tiny chunks is costly. Raises StopParsing."""
        if exchange.is_last and b"transfer-encoding" in exchange.request.headers:
            self._is_deaf = True
            raise StopParsing

    def _give_up(self, error: EmberlineError, status: int = 400) -> None:
        """Answers input that cannot be read any further, after the answers to earlier requests, and closes."""
        exchange, self._arriving = self._arriving, None
        is_head = self._in_head and self._parser.get_method() == b"HEAD"
        self._in_head = False
        self._is_broken = True
        if exchange is not None:
            exchange.release()
            exchange.keep_alive = False
        if exchange is None or exchange.refused is None:
            exchange = self._nothing()
            exchange.is_head = is_head
            exchange.refused = error_response(error, status=status)
        if self._active is not None or self._waiting:
            self._transport.pause_reading()
            self._waiting.append(exchange)
            return
        if not exchange.is_answered and exchange.refused is not None:
            self._send(exchange, exchange.refused)  # the last one: it closes
        else:
            self._close()

    def _nothing(self) -> Exchange:
        """Returns an exchange for a response that belongs to no request and is the last one on the connection."""
        return Exchange(HttpRequest("", "", b"", {}, caller=self._caller), self._limits, False, False)

    def _watch_unsent(self) -> None:
        """Gives the client time to read the unsent bytes; `expire` extends it if some of them were read meanwhile."""
        self._unsent = self._transport.get_write_buffer_size()
        self.due = time.monotonic() + self._limits.body_timeout_s

    def _close(self) -> None:
        """Closes the connection when all bytes that were written have been read."""
        if self._transport.is_closing():
            return  # asyncio's transports of TLS are of no more use after a second `close`
        self._transport.close()
        self.idle_since = NEVER
        self._watch_unsent()
