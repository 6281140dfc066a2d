"""Serves the HTTP port by native code: ordinary inference requests never reach Python before they are a batch.

The native server answers requests to models that are published to it, when a request is a plain one: HTTP/1.1 with a
Content-Length, and JSON in its usual form with numeric tensors in it or as bytes after it. A connection with any other
request, however unusual or malformed, is handed over with its unread bytes to `HttpProtocol`, which serves it from
there; it goes back when its next request looks like an ordinary one.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

from serving._front import Callers, HttpServer, Observer
from serving.config import ServerConfig
from serving.errors import status_of
from serving.http.exchange import status_line
from serving.http.limits import KEEP_ALIVE_S
from serving.http.protocol import LINGER_S, HttpProtocol
from serving.native_path.options import server_options
from serving.native_path.routes import NativeRoutes, NativeServer
from storage.errors import EmberlineError

# Of callers that are not known, may not do it, or come too often.
_ACCESS_REFUSED = frozenset((401, 403, 429))
_INFER_LINE = (b"POST /v2/models/", b"/infer HTTP/1.1")


class AdoptedConnection(HttpProtocol):
    """Serves a connection that the native server has handed over."""

    def __init__(
        self, *arguments: Any, server: NativeHttpServer, ticket: int, data: bytes, may_return: bool, **options: Any
    ) -> None:
        """Further arguments are those of HttpProtocol. data: what was read, from the beginning of a request.

        may_return: whether the connection may go back to the native server, which knows it by its ticket.
        """
        super().__init__(*arguments, **options)
        self._server = server
        self._ticket = ticket
        self._first = data
        self._may_return = may_return
        self._is_returned = False
        self._is_refused = False

    def on_headers_complete(self) -> None:
        """Admits a request, or refuses it; a connection whose caller was refused stays here until one is let in.

        Going back and forth would make refusals expensive.
        """
        super().on_headers_complete()
        refused = None if self._arriving is None else self._arriving.refused
        self._is_refused = refused is not None and refused.status in _ACCESS_REFUSED

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Continues with the bytes that the native server has read."""
        super().connection_made(transport)
        data, self._first = self._first, b""
        if not self._transport.is_closing():
            super().data_received(data)
        if self._server.is_draining:
            self.shutdown()

    def data_received(self, data: bytes) -> None:
        """Takes bytes of requests; gives the connection back when an ordinary request begins."""
        if self._may_return and not self._is_refused and self.is_at_rest and _is_ordinary(data):
            self._is_returned = True
            self._server.give_back(self._ticket, data)
            self._transport.abort()
            return
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the connection, unless it was given back."""
        super().connection_lost(exc)
        if not self._is_returned:
            self._server.closed(self._ticket)


def _is_ordinary(data: bytes) -> bool:
    """Returns whether a request begins that the native server may answer."""
    begin, end = _INFER_LINE
    return data.startswith(begin) and data.find(end, 0, data.find(b"\r\n") + 1) > 0


class NativeHttpServer(NativeServer[HttpServer]):
    """Accepts the connections of a port, and adopts those that are handed over. For one event loop.

    The server of the adopted connections ends these when both are drained.
    """

    def __init__(
        self,
        config: ServerConfig,
        observer: Observer,
        callers: Callers | None,
        routes: NativeRoutes,
        listener: socket.socket,
        protocol: Callable[..., HttpProtocol],
    ) -> None:
        """observer: takes note of requests that are answered here. callers: see server_options.

        protocol: makes the protocol of a connection, as `HttpServer` does, of the class AdoptedConnection.
        """
        options = server_options(
            config, observer, callers, keep_alive_s=KEEP_ALIVE_S, linger_s=LINGER_S, status=_status_line
        )
        super().__init__(routes, lambda wake: HttpServer(options, routes.native, listener.fileno(), wake))
        self._protocol = protocol
        self._adopting: set[asyncio.Task[Any]] = set()

    def give_back(self, ticket: int, data: bytes) -> None:
        """Lets the native server go on with a connection. data: what was read of its next request."""
        if self._native is not None:
            self._native.give_back(ticket, data)

    def closed(self, ticket: int) -> None:
        """Ends a connection that was handed over."""
        if self._native is not None:
            self._native.closed(ticket)

    def _take(self, server: HttpServer) -> None:
        for descriptor, ticket, data, may_return in server.take_handed_over():
            task = self._loop.create_task(self._adopt(descriptor, ticket, data, may_return))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)

    def _ended(self, server: HttpServer) -> None:
        for descriptor, *_ in server.take_handed_over():
            os.close(descriptor)

    async def _adopt(self, descriptor: int, ticket: int, data: bytes, may_return: bool) -> None:
        connection = socket.socket(fileno=descriptor)
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(server=self, ticket=ticket, data=data, may_return=may_return), connection
            )
        except OSError:
            connection.close()
            self.closed(ticket)


def _status_line(error: EmberlineError) -> str:
    return status_line(status_of(error)[0]).decode()
