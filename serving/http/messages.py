"""Defines a complete HTTP request, its response, and the application that answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from serving.errors import BodyTooLarge, RateLimited, status_of
from serving.http.route import InferenceRoute
from serving.observing.facts import RequestFacts
from serving.protocol.json_text import dump_json
from serving.security.gate import Admission
from serving.security.principals import NOBODY, Caller
from storage.errors import Unsupported

Headers = list[tuple[bytes, bytes]]

JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")
LIVE, READY = "/v2/health/live", "/v2/health/ready"


class BodyRoom(Protocol):
    """Bounds and counts the memory for the body of one request until it is answered."""

    @property
    def max_body(self) -> int:
        """Returns the most bytes that the body may have, also after decompression."""

    def hold(self, size: int) -> None:
        """Counts `size` more bytes, or fewer if it is below 0. Raises Overloaded."""

    def too_large(self, got: str) -> BodyTooLarge:
        """Returns the error for a body of `got` bytes."""


@dataclass(slots=True)
class HttpRequest:
    """Is a request to the HTTP port."""

    method: str
    #: Decoded, without the query.
    path: str
    query: bytes
    #: Values by name in lower case; the last one of a header that comes twice.
    headers: Mapping[bytes, bytes]
    #: Empty until the request is complete.
    body: bytes = b""
    #: The route of an inference request, set when it was admitted.
    route: InferenceRoute | None = None
    #: Counts the memory for the body; None where it did not come over a connection of this process.
    room: BodyRoom | None = None
    #: The peer of the connection that it came by.
    caller: Caller = NOBODY
    #: The header of that name, set when the gate has removed it from `headers`.
    authorization: bytes | None = None
    #: Set where the request was admitted as a control call.
    admission: Admission | None = None
    #: What observers want to know of it.
    facts: RequestFacts = field(default_factory=RequestFacts)
    #: Bytes of the head and the body, as they came.
    size: int = 0


@dataclass(slots=True)
class HttpResponse:
    """Is a response of the HTTP port."""

    status: int
    content: bytes = b""
    #: Without Content-Length, which the protocol adds.
    headers: Headers = field(default_factory=list)
    #: Whether nothing more can be read from the connection, which is then closed.
    closes: bool = False
    #: What went wrong, as the content says it, for the access log.
    error: str = ""


class UnsupportedEncoding(Unsupported):
    """Says that the body is compressed in a way that this server does not know."""


class HttpApplication(Protocol):
    """Answers the requests of a port, on one event loop."""

    def admit(self, request: HttpRequest) -> None:
        """Checks a request before its body is read. Raises EmberlineError to refuse it."""

    def answer_at_once(self, request: HttpRequest) -> HttpResponse | None:
        """Returns the response if it takes no time, such as to a health probe; else None. Raises nothing."""

    def answer(self, request: HttpRequest) -> Awaitable[HttpResponse]:
        """Returns the response. It may raise any exception, and is cancelled when the client disconnects."""

    def ended(self, request: HttpRequest, response: HttpResponse, *, is_sent: bool) -> None:
        """Called when the response of a request is about to be sent, or is not because the client has left."""


def health_response(key: str, is_so: bool, **beside: str) -> HttpResponse:
    """Returns the response to a health request, such as {"live": true}: 200 for true, 400 for false, as in Triton.

    beside: further keys of the JSON object.
    """
    return HttpResponse(200 if is_so else 400, dump_json({**beside, key: is_so}), [JSON])


def wrong_method(method: str, allowed: Sequence[str]) -> HttpResponse:
    """Returns the response to a request whose path allows other methods."""
    text = f"{method} is not allowed here; send {' or '.join(allowed)}"
    return HttpResponse(405, dump_json({"error": text}), [JSON, (b"allow", ", ".join(allowed).encode())])


def error_response(error: BaseException, *, status: int = 0) -> HttpResponse:
    """Returns the response for an error. status: instead of the error's own, where HTTP has a more specific one."""
    usual, _, text = status_of(error)
    status = status or usual
    headers = [JSON]
    if isinstance(error, UnsupportedEncoding):
        status = 415
        headers.append((b"accept-encoding", b"gzip, deflate"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, RateLimited):
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    # A body or head that is too large is not read, so the connection is closed.
    return HttpResponse(status, dump_json({"error": text}), headers, closes=status in (413, 431), error=text)
