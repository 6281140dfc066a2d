"""Notes requests of the HTTP port that have ended, for the access log and for traces."""

from __future__ import annotations

from serving._front import Observer
from serving.http.messages import LIVE, READY, HttpRequest, HttpResponse
from serving.http.route import inference_route
from serving.protocol.request_ids import REQUEST_ID_HEADER, request_id_of_header
from serving.security.gate import Gate
from serving.security.principals import ANONYMOUS_NAME

# Of a client that has left before its answer, as other servers log it.
_CLIENT_LEFT = 499
_PROBES = frozenset((LIVE, READY))


def note_ended(observer: Observer, gate: Gate, request: HttpRequest, response: HttpResponse, *, is_sent: bool) -> None:
    """Notes a request. Probes of health are left out: they come every second, and say nothing new."""
    if request.path in _PROBES:
        return
    facts, headers = request.facts, request.headers
    # A request that was not admitted has no route yet.
    route = request.route or inference_route(request.method, request.path)
    if route is None:
        facts.call = f"{request.method} {request.path}".strip()
    else:
        facts.call = "predict" if route.is_v1 else "infer"
        facts.model = facts.model or route.name
        facts.version = facts.version or route.version
    if route is not None and gate.is_open:
        principal = ANONYMOUS_NAME  # a token that comes along is not looked at, by native code neither
    else:
        principal = gate.name_of(request.authorization or headers.get(b"authorization"), request.caller)
    header_id = request_id_of_header(headers.get(REQUEST_ID_HEADER))
    facts.id = facts.id or header_id
    facts.note(
        observer,
        is_grpc=False,
        header_id=header_id,
        traceparent=headers.get(b"traceparent", b"").decode("latin-1"),
        address=request.caller.address,
        principal=principal,
        error=response.error,
        status=response.status if is_sent else _CLIENT_LEFT,
        request_bytes=request.size,
        response_bytes=len(response.content) if is_sent else 0,
        is_traceable=route is not None,
    )
