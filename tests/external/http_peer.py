"""ASGI application that uvicorn and granian serve in the HTTP campaign; it answers as this server's routes do.

It runs in the peers' own environment, so it imports nothing of ours.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

_WINDOWS = {"gzip": 31, "deflate": 15}


async def app(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Answers GET of /v2/health/live and POST of /v2/models/echo/infer with JSON, and all else with 404 or 405."""
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    status = _status(scope, body)
    content = b"{}" if scope["method"] != "HEAD" else b""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _status(scope: dict[str, Any], body: bytes) -> int:
    if scope["path"] == "/v2/health/live":
        return 200 if scope["method"] in ("GET", "HEAD") else 405
    if scope["path"] != "/v2/models/echo/infer":
        return 404
    if scope["method"] != "POST":
        return 405
    encoding = dict(scope["headers"]).get(b"content-encoding", b"").decode().lower()
    if encoding not in ("", "identity", *_WINDOWS):
        return 415
    try:
        if encoding in _WINDOWS:
            body = zlib.decompress(body, _WINDOWS[encoding])
        content = json.loads(body)
    except (ValueError, zlib.error):
        return 400
    return 200 if type(content) is dict and "inputs" in content else 400
