"""uvicorn as this project runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn

from serving.http.limits import HttpLimits
from serving.http.messages import HttpApplication
from serving.http.protocol import HttpProtocol
from serving.ports import BACKLOG


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers; ours stop all front ends together."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_server(app: HttpApplication, limits: HttpLimits, drain_timeout_s: float) -> HttpServer:
    """The server for an application; run `serve` with its sockets."""
    settings = uvicorn.Config(
        _not_asgi,
        http=partial(HttpProtocol, app=app, limits=limits),  # type: ignore[arg-type]
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
    return HttpServer(settings)


async def _not_asgi(scope: Any, receive: Any, send: Any) -> None:
    """uvicorn wants an application; the protocol has its own."""
