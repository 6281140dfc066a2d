"""uvicorn as this project runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn

from serving.ports import BACKLOG

_KEEP_ALIVE_S = 75


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers; ours stop all front ends together."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_server(app: Any, drain_timeout_s: float) -> HttpServer:
    """The server for an ASGI application; run `serve` with its sockets."""
    settings = uvicorn.Config(
        app,
        http="httptools",
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
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(drain_timeout_s)),
    )
    return HttpServer(settings)
