"""Configures and starts uvicorn for this project."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn

from serving.http.limits import HttpLimits
from serving.http.messages import HttpApplication
from serving.http.protocol import HttpProtocol
from serving.ports import BACKLOG
from serving.security.tls import HANDSHAKE_S, ServerTls

# Long, because asyncio would cut off the part of the last answer that a slow client has not read yet. The protocol's
# own clock ends the connection.
_TLS_SHUTDOWN_S = 3600.0


class HttpServer(uvicorn.Server):
    """Is uvicorn without its signal handlers, since ours stop all transports together, and without its clock.

    uvicorn looks ten times a second whether it should end; this one waits until `end` is called.
    """

    tls: ServerTls | None = None
    _ending: asyncio.Event | None = None

    def end(self) -> None:
        """Lets `serve` end its connections and return. Must be called on its event loop."""
        self.should_exit = True
        if self._ending is not None:
            self._ending.set()

    async def main_loop(self) -> None:
        """Waits for `end`."""
        self._ending = asyncio.Event()
        if not await self.on_tick(0):
            await self._ending.wait()

    def connection(self, **further: Any) -> HttpProtocol:
        """Makes the protocol of one connection. further: what the protocol's class takes beside."""
        # uvicorn's type hints allow its own protocols only.
        made: HttpProtocol = self.config.http_protocol_class(  # type: ignore[call-arg, assignment]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, **further
        )
        return made

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens on the sockets. uvicorn's own method gives a handshake a minute, and cannot reload certificates."""

        loop = asyncio.get_running_loop()
        await self.lifespan.startup()
        self.servers = [
            await loop.create_server(
                self.connection,
                sock=bound,
                backlog=BACKLOG,
                ssl=None if self.tls is None else self.tls.context,
                ssl_handshake_timeout=None if self.tls is None else HANDSHAKE_S,
                ssl_shutdown_timeout=None if self.tls is None else _TLS_SHUTDOWN_S,
            )
            for bound in sockets or ()
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_server(
    app: HttpApplication,
    limits: HttpLimits,
    drain_timeout_s: float,
    tls: ServerTls | None = None,
    *,
    protocol: type[HttpProtocol] = HttpProtocol,
) -> HttpServer:
    """Creates the server for an application; run its `serve` with the sockets. tls: None for plain HTTP."""
    settings = uvicorn.Config(
        _not_asgi,
        http=partial(protocol, app=app, limits=limits),  # type: ignore[arg-type]
        loop="none",
        ws="none",
        interface="asgi3",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=max(1, round(drain_timeout_s)),
    )
    server = HttpServer(settings)
    server.tls = tls
    return server


async def _not_asgi(scope: Any, receive: Any, send: Any) -> None:
    """Stands in for the application that uvicorn requires; the protocol has its own."""
