"""Reports readiness to programs beside the server, such as a container's health check.

It uses a Unix socket in Linux's abstract namespace, without TLS, port or token: that needs no writable folder and ends
with its process. It says no more than /v2/health/ready, which is open to everybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from storage.errors import Conflict, Unavailable

logger = logging.getLogger("emberline.serving")

_NAME = "emberline-health-{}"
_LISTED = re.compile(r" @" + _NAME.format(r"([0-9]{1,5})") + r"$", re.MULTILINE)
_UNIX_SOCKETS = Path("/proc/net/unix")
_READY, _NOT_READY = b"ready\n", b"not ready\n"


@contextlib.asynccontextmanager
async def local_health(http_port: int, is_ready: Callable[[], bool]) -> AsyncIterator[None]:
    """Answers every connection with the state, inside the `with` block. Logs a warning where it has no socket."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(_READY if is_ready() else _NOT_READY)
            writer.close()
            await writer.wait_closed()

    try:
        server = await asyncio.start_unix_server(answer, _address(http_port))
    except OSError as error:
        logger.warning("`emberline health` will find no server with the port %d: %s", http_port, error)
        yield
        return
    try:
        yield
    finally:
        server.close()


def ask_local_health(http_port: int | None, timeout_s: float) -> bool:
    """Returns whether the server with this HTTP port is ready.

    http_port: None: the only server of this machine or container. Raises Unavailable when no server answers, Conflict
    when there are several.
    """
    if http_port is None:
        there = _ports()
        if len(there) > 1:
            raise Conflict(f"several servers run here, with the ports {', '.join(map(str, there))}; give --http-port")
        if not there:
            raise Unavailable("no server runs on this machine, or in this container")
        http_port = there[0]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(_address(http_port))
            with connection.makefile("rb") as answer:
                return answer.readline(64) == _READY
    except OSError as error:
        raise Unavailable(f"the server with the port {http_port} does not answer: {error}") from None


def _address(http_port: int) -> str:
    return "\0" + _NAME.format(http_port)


def _ports() -> list[int]:
    # Each open connection has a line as well.
    found = _LISTED.findall(_UNIX_SOCKETS.read_text(encoding="utf-8", errors="replace"))
    return sorted({int(port) for port in found})
