"""A request as it arrived whole, and its response."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from serving.errors import status_of
from serving.protocol.json_text import dump_json
from storage.errors import Unsupported

Headers = list[tuple[bytes, bytes]]

JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")


@dataclass(slots=True)
class HttpRequest:
    """path: decoded, without the query. headers: names in lower case; of one that comes twice, the last.

    body: empty until the request is whole. route: what the application made of the path when it admitted the request.
    """

    method: str
    path: str
    query: bytes
    headers: Mapping[bytes, bytes]
    body: bytes = b""
    route: Any = None


@dataclass(slots=True)
class HttpResponse:
    """headers: without the length, which the protocol adds. closes: nothing more can be read from this connection."""

    status: int
    content: bytes = b""
    headers: Headers = field(default_factory=list)
    closes: bool = False


class UnsupportedEncoding(Unsupported):
    """The body is compressed in a way that this server does not know."""


class HttpApplication(Protocol):
    """What answers the requests of a port. One event loop."""

    def admit(self, request: HttpRequest) -> None:
        """Looks at a request before its body is read. Raises EmberlineError to refuse it."""

    def answer(self, request: HttpRequest) -> Awaitable[HttpResponse]:
        """The response. May raise anything; is cancelled when the client goes away."""


def error_response(error: BaseException, *, status: int = 0) -> HttpResponse:
    """What the caller is told of an error. status: instead of what belongs to it, where HTTP has one of its own."""
    usual, _, text = status_of(error)
    status = status or usual
    headers = [JSON]
    if isinstance(error, UnsupportedEncoding):
        headers.append((b"accept-encoding", b"identity"))
    # What is too large will not be read.
    return HttpResponse(status, dump_json({"error": text}), headers, closes=status in (413, 431))
