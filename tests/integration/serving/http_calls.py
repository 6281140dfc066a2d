"""Sends HTTP requests to servers, each over a connection of its own."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Reply:
    """An HTTP answer."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content) if self.content else None


def _reply(answer: http.client.HTTPResponse) -> Reply:
    """Returns the headers without the date, in which two servers may differ."""
    headers = {name.lower(): value for name, value in answer.getheaders() if name.lower() != "date"}
    return Reply(answer.status, headers, answer.read())


def ask(port: int, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
    """Sends one request on a connection of its own.

    body: bytes, or a value that is sent as JSON.
    """
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, data, dict(headers or {}))
        answer = connection.getresponse()
        return _reply(answer)
    finally:
        connection.close()


def until(holds: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
