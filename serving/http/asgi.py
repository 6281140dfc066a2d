"""Calls an ASGI application for one response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from serving.http.messages import HttpRequest, HttpResponse, error_response

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
AsgiApp = Callable[[Scope, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


async def call_asgi(app: AsgiApp, request: HttpRequest) -> HttpResponse:
    """Returns the application's response. An exception that it does not turn into a response becomes one here."""
    response = HttpResponse(500)
    started = False
    parts: list[bytes] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal started
        if message["type"] == "http.response.start":
            started = True
            response.status = message["status"]
            response.headers = [
                (bytes(name), bytes(value))
                for name, value in message.get("headers", ())
                if bytes(name).lower() != b"content-length"
            ]
        else:
            parts.append(message.get("body", b""))

    try:
        await app(_scope(request), receive, send)
    except Exception as error:
        if not started:
            return error_response(error)
    response.content = b"".join(parts)
    return response


def _scope(request: HttpRequest) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode("utf-8", "surrogatepass"),
        "root_path": "",
        "query_string": request.query,
        "headers": list(request.headers.items()),
        "client": None,
        "server": None,
    }
