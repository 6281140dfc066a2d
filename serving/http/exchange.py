"""Defines a request with its response on a connection, and writes the response's bytes."""

from __future__ import annotations

import asyncio
import http
import time
from email.utils import formatdate

from serving.errors import BodyTooLarge
from serving.http.head import RequestHead
from serving.http.limits import HttpLimits
from serving.http.messages import HttpRequest, HttpResponse
from serving.protocol.request_ids import REQUEST_ID_HEADER, request_id_of_header
from serving.security.principals import Connection
from storage.errors import EmberlineError, InvalidInput

# Pieces of a body below the first size are joined, up to the second size: each piece alone takes forty bytes more.
_SMALL_BYTES, _GATHERED_BYTES = 4 << 10, 64 << 10
# From this size on, head and body are passed to the transport separately, which saves a copy of the body.
_APART_BYTES = 16 << 10
# Under TLS a response is written in pieces: asyncio encrypts all of one write at once, however little the client reads,
# and does not count the encrypted bytes. Between two pieces it notices that the client is behind.
_TLS_PIECE_BYTES = 64 << 10
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus}


class Exchange:
    """Holds a request while it arrives and is answered. Implements BodyRoom."""

    __slots__ = (
        *("chunks", "dropped", "held", "is_answered", "is_head", "is_last", "keep_alive", "limits", "refused"),
        *("request", "speaks_1_0"),
    )

    def __init__(self, request: HttpRequest, limits: HttpLimits, keep_alive: bool, speaks_1_0: bool) -> None:
        self.request = request
        self.limits = limits
        self.keep_alive = keep_alive
        self.speaks_1_0 = speaks_1_0
        self.chunks: list[bytes | bytearray] = []
        self.held = 0
        #: The response to a request that was refused; the application does not see the request.
        self.refused: HttpResponse | None = None
        #: Whether `refused` has been sent before the body was here.
        self.is_answered = False
        #: Whether the connection ends when the body has arrived.
        self.is_last = False
        #: Whether the response is sent without its content.
        self.is_head = False
        #: Bytes of the body that were dropped.
        self.dropped = 0
        request.room = self

    @property
    def max_body(self) -> int:
        """See BodyRoom."""
        return self.limits.max_body

    def hold(self, size: int) -> None:
        """See BodyRoom."""
        self.limits.hold(size)
        self.held += size

    def keep(self, chunk: bytes) -> None:
        """Keeps a piece of the body. Raises Overloaded."""
        self.limits.hold(len(chunk))
        self.held += len(chunk)
        last = self.chunks[-1] if self.chunks else None
        if last is None or len(chunk) >= _SMALL_BYTES:
            self.chunks.append(chunk)
        elif isinstance(last, bytearray) and len(last) < _GATHERED_BYTES:
            last += chunk
        else:
            self.chunks.append(bytearray(chunk))

    def whole(self) -> None:
        """Joins the pieces to the request's body."""
        chunks, self.chunks = self.chunks, []
        request = self.request
        request.body = bytes(chunks[0]) if len(chunks) == 1 else b"".join(chunks)
        request.size += len(request.body)
        request.facts.arrived_ns = time.monotonic_ns()

    def too_large(self, got: str) -> BodyTooLarge:
        """See BodyRoom."""
        return self.limits.too_large(got)

    def release(self) -> None:
        """Stops counting the memory of the body, which is no longer used."""
        self.limits.release(self.held)
        self.held = 0
        self.request.room = None  # breaks the reference cycle, which would keep the body


_date = (0, b"")


def status_line(status: int) -> bytes:
    """Returns the first line of a response."""
    return _STATUS_LINES[status]


def begin_exchange(
    head: RequestHead, method: bytes, version: str, limits: HttpLimits, caller: Connection
) -> tuple[Exchange, tuple[EmberlineError, int] | None]:
    """Returns the exchange of a request whose head is complete, and the error of a wrong head with its HTTP status.

    method, version: as parsed, such as b"POST" and "1.1".
    """
    path, query, fault = "", b"", head.fault(version)
    if fault is None:
        try:
            path, query = head.target()
        except InvalidInput as error:
            fault = error, 400
    # HEAD is GET whose response is sent without its body.
    is_head = method == b"HEAD"
    request = HttpRequest("GET" if is_head else method.decode("ascii"), path, query, head.headers, caller=caller)
    request.size = head.size
    exchange = Exchange(request, limits, True, version == "1.0")
    exchange.is_head = is_head
    return exchange, fault


def _date_line() -> bytes:
    """Returns the header Date, formatted once a second."""
    global _date
    now = int(time.time())
    made, line = _date
    if made != now:
        line = f"date: {formatdate(now, usegmt=True)}\r\n".encode()
        _date = (now, line)
    return line


def response_head(
    response: HttpResponse, exchange: Exchange, keep_alive: bool, *, has_length: bool = True
) -> list[bytes]:
    """Returns the pieces of a response's head, including the empty line.

    has_length: False for content that ends with the connection.
    """
    head = [_STATUS_LINES[response.status], _date_line()]
    if has_length:
        head.append(b"content-length: %d\r\n" % len(response.content))
    for name, value in response.headers:
        head += (name, b": ", value, b"\r\n")
    request_id = exchange.request.headers.get(REQUEST_ID_HEADER)
    if request_id is not None and (echoed := request_id_of_header(request_id)):
        head += (REQUEST_ID_HEADER, b": ", echoed.encode(), b"\r\n")
    if not keep_alive:
        head.append(b"connection: close\r\n")
    elif exchange.speaks_1_0:
        head.append(b"connection: keep-alive\r\n")
    head.append(b"\r\n")
    return head


def write_response(transport: asyncio.WriteTransport, head: bytes, content: bytes, *, is_tls: bool) -> None:
    """Passes head and content to the transport."""
    if len(content) < _APART_BYTES:
        transport.write(head + content)
    elif is_tls:
        transport.write(head)
        pieces = memoryview(content)
        for start in range(0, len(content), _TLS_PIECE_BYTES):
            transport.write(pieces[start : start + _TLS_PIECE_BYTES])
    else:
        transport.writelines((head, content))
