"""A request as it arrived whole, and its response."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from serving.errors import BodyTooLarge, RateLimited, status_of
from serving.http.route import InferenceRoute
from serving.protocol.json_text import dump_json
from serving.security.gate import Admission
from serving.security.principals import NOBODY, Caller
from storage.errors import Unsupported

Headers = list[tuple[bytes, bytes]]

JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")
LIVE, READY = "/v2/health/live", "/v2/health/ready"


class BodyRoom(Protocol):
    """What the body of one request may take until it is answered. max_body: bytes, also when it is unpacked."""

    @property
    def max_body(self) -> int:
        """Bytes."""

    def hold(self, size: int) -> None:
        """Takes bytes into account, or gives some back (below 0). Raises Overloaded."""

    def too_large(self, got: str) -> BodyTooLarge:
        """The error for a body of so many bytes."""


@dataclass(slots=True)
class HttpRequest:
    """path: decoded, without the query. headers: names in lower case; of one that comes twice, the last.

    body: empty until the request is whole. route: of an inference request, once it was admitted.
    room: for what is made of its body; None where it did not come over a connection of this process.
    caller: whose connection it came by. authorization: the header, once the gate has taken it out of the others.
    admission: set where it was let in to control.
    """

    method: str
    path: str
    query: bytes
    headers: Mapping[bytes, bytes]
    body: bytes = b""
    route: InferenceRoute | None = None
    room: BodyRoom | None = None
    caller: Caller = NOBODY
    authorization: bytes | None = None
    admission: Admission | None = None


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

    def answer_at_once(self, request: HttpRequest) -> HttpResponse | None:
        """The response to what takes no time, such as a probe of health; None: `answer` has it. Raises nothing."""

    def answer(self, request: HttpRequest) -> Awaitable[HttpResponse]:
        """The response. May raise anything; is cancelled when the client goes away."""


def health_response(key: str, is_so: bool, **beside: str) -> HttpResponse:
    """The protocol's answer to a question of health, such as {"live": true}: 200 for yes, 400 for no, as in Triton."""
    return HttpResponse(200 if is_so else 400, dump_json({**beside, key: is_so}), [JSON])


def wrong_method(method: str, allowed: Sequence[str]) -> HttpResponse:
    """The response to a request whose path takes other methods."""
    text = f"{method} is not allowed here; send {' or '.join(allowed)}"
    return HttpResponse(405, dump_json({"error": text}), [JSON, (b"allow", ", ".join(allowed).encode())])


def error_response(error: BaseException, *, status: int = 0) -> HttpResponse:
    """What the caller is notified of an error. status: instead of what belongs to it, where HTTP has one of its own."""
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
    # What is too large will not be read.
    return HttpResponse(status, dump_json({"error": text}), headers, closes=status in (413, 431))
