"""Applies the gate to HTTP requests, before their body is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from serving.errors import Forbidden, UnknownModel
from serving.http.messages import HttpApplication, HttpRequest, HttpResponse
from serving.http.routes import http_need
from serving.security.audit import arguments_of_body
from serving.security.forwarded import forwarded_headers, refuse_forwarded
from serving.security.gate import Admission, Gate
from serving.security.needs import GIVE_FEEDBACK, REGIONS
from storage.errors import EmberlineError, InvalidInput, NotFound

_OTHER_SITES = (b"cross-site", b"same-site")


def admit(gate: Gate, request: HttpRequest) -> None:
    """Admits a request that is not inference, and removes its token, which nothing behind the gate uses."""
    # A path ends up in messages and in the audit log.
    if not request.path.isprintable():
        raise InvalidInput("the path has characters that cannot be printed", field="path")
    need, model, call = http_need(request.method, request.path)
    changes = need.is_control or need is REGIONS or need is GIVE_FEEDBACK
    if request.method == "POST" and changes:
        try:
            _refuse_strangers(gate, request)
        except EmberlineError as error:
            gate.refused(need, model, request.caller, "http", call, error)
            raise
    if need is REGIONS:
        refuse_forwarded(forwarded_headers(request.headers))
    request.admission = gate.admit(need, model, request.headers.get(b"authorization"), request.caller, "http", call)
    if isinstance(request.headers, dict):
        request.authorization = request.headers.pop(b"authorization", None)


def _refuse_strangers(gate: Gate, request: HttpRequest) -> None:
    """Refuses what a browser sent for a page that is not this server's own."""
    headers = request.headers
    if is_of_a_page(headers):
        raise Forbidden("this call came from a web page of another origin; pages may not control this server")
    if b"origin" in headers:  # browsers send it with every POST
        gate.check_host(headers.get(b"host", b""), headers.get(b"authorization"), request.caller)


def told(gate: Gate, request: HttpRequest, error: UnknownModel) -> NotFound:
    """Returns the error with only what the caller is allowed to know."""
    authorization = request.authorization or request.headers.get(b"authorization")
    return error.told_to(lambda name: gate.sees(name, authorization, request.caller))


def is_of_a_page(headers: Mapping[bytes, bytes]) -> bool:
    """Returns whether a browser sent the request for a page of another origin.

    A browser sends a simple POST without asking anyone first. It says so in headers that pages cannot set; other
    clients send neither.
    """
    if headers.get(b"sec-fetch-site", b"").lower() in _OTHER_SITES:
        return True
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2].lower() != headers.get(b"host", b"").lower()


async def audited(
    gate: Gate, admission: Admission, request: HttpRequest, answer: Callable[[HttpRequest], Awaitable[HttpResponse]]
) -> HttpResponse:
    """Answers a control call that was admitted, and writes it to the audit log."""
    outcome: int | str = "cancelled"
    try:
        response = await answer(request)
        outcome = response.status
        return response
    except Exception as error:
        outcome = type(error).__name__
        raise
    finally:
        gate.done(admission, arguments_of_body(request.body), outcome)


class GatedApp:
    """Implements HttpApplication by another one behind the gate."""

    def __init__(self, app: HttpApplication, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    def admit(self, request: HttpRequest) -> None:
        """See HttpApplication."""
        admit(self._gate, request)
        self._app.admit(request)

    def answer_at_once(self, request: HttpRequest) -> HttpResponse | None:
        """See HttpApplication."""
        return self._app.answer_at_once(request)

    def answer(self, request: HttpRequest) -> Awaitable[HttpResponse]:
        """See HttpApplication."""
        return self._app.answer(request)

    def ended(self, request: HttpRequest, response: HttpResponse, *, is_sent: bool) -> None:
        """See HttpApplication."""
        self._app.ended(request, response, is_sent=is_sent)
