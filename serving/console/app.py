"""Answers the requests of the metrics port that are for the console; all others go on to the metrics."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qs

from serving.console.assets import SAFE_HEADERS, read_assets
from serving.console.feed import Feed
from serving.errors import Forbidden
from serving.http.event_stream import EVENT_STREAM, StreamResponse
from serving.http.gate import is_of_a_page
from serving.http.messages import HttpApplication, HttpRequest, HttpResponse, wrong_method
from serving.security.gate import Gate
from serving.security.needs import WATCH
from storage.errors import InvalidInput, NotFound

PATH = "/console"
EVENTS = PATH + "/events"
# Calls that the page makes: behind PATH they are those of the HTTP port.
_CALLS = tuple(PATH + path for path in ("/v1/models/", "/v2/models/", "/v2/repository/"))
_ACCEPTS = b"accept-encoding"


class ConsoleApp:
    """Implements HttpApplication: the page, its files, its events, and the calls that it makes.

    The page and its files are open to all, as they say nothing of the server. Events need the role `read`, and calls
    what they need on the HTTP port, where `calls` answers them.
    """

    def __init__(self, others: HttpApplication, calls: HttpApplication, gate: Gate, feed: Feed) -> None:
        self._others = others
        self._calls = calls
        self._gate = gate
        self._feed = feed

    def admit(self, request: HttpRequest) -> None:
        """See HttpApplication."""
        path, headers = request.path, request.headers
        if not _is_ours(path):
            self._others.admit(request)
            return
        authorization = headers.get(b"authorization")
        if path == EVENTS or path.startswith(_CALLS):
            self._gate.check_host(headers.get(b"host", b""), authorization, request.caller)
        if path == EVENTS:
            self._gate.admit(WATCH, "", authorization, request.caller, "http", WATCH.call)
        elif path.startswith(_CALLS):
            if request.method == "POST" and is_of_a_page(headers):
                raise Forbidden("this call came from a web page of another origin; only the console's own page calls")
            inner = _inner(request)
            self._calls.admit(inner)
            request.route, request.admission, request.authorization = inner.route, inner.admission, inner.authorization

    def answer_at_once(self, request: HttpRequest) -> HttpResponse | None:
        """See HttpApplication."""
        return None if _is_ours(request.path) else self._others.answer_at_once(request)

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """See HttpApplication."""
        path = request.path
        if not _is_ours(path):
            return await self._others.answer(request)
        if path.startswith(_CALLS):
            response = await self._calls.answer(_inner(request))
            response.headers += SAFE_HEADERS
            return response
        if request.method != "GET":
            return wrong_method(request.method, ["GET", "HEAD"])
        if path == EVENTS:
            return self._events(request)
        accepts = request.headers.get(_ACCEPTS, b"")
        assets = read_assets()
        if path == PATH:
            return assets.page.response(accepts, b"no-cache")
        if path == PATH + "/":
            return HttpResponse(308, b"", [*SAFE_HEADERS, (b"location", b"../console")])
        digest, _, name = path.removeprefix(PATH + "/").partition("/")
        if digest != assets.digest or name not in assets.files:
            raise NotFound("the console has no such file; load the page again")
        return assets.files[name].response(accepts, b"public, max-age=31536000, immutable")

    def ended(self, request: HttpRequest, response: HttpResponse, *, is_sent: bool) -> None:
        """See HttpApplication. Calls are noted as those of the HTTP port, the page and its files are not."""
        if request.path.startswith(_CALLS):
            self._calls.ended(_inner(request), response, is_sent=is_sent)

    def _events(self, request: HttpRequest) -> HttpResponse:
        authorization = request.headers.get(b"authorization") or request.authorization
        page = self._feed.join(_watched(request.query), authorization, request.caller)
        # Buffers of a proxy would hold events back.
        headers = [*SAFE_HEADERS, EVENT_STREAM, (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        return StreamResponse(200, b"", headers, parts=page)


def _is_ours(path: str) -> bool:
    return path == PATH or path.startswith(PATH + "/")


def _inner(request: HttpRequest) -> HttpRequest:
    """Returns the request as the HTTP port would have got it."""
    return replace(request, path=request.path.removeprefix(PATH))


def _watched(query: bytes) -> str:
    """Returns the model that a page watches, "" for none. Raises InvalidInput."""
    if len(query) > 4096:
        raise InvalidInput("the query has over 4096 bytes", field="model")
    try:
        given = parse_qs(query.decode("ascii"), max_num_fields=4).get("model", [""])
    except ValueError:
        raise InvalidInput("expected a query such as model=NAME", field="model") from None
    return given[-1]
