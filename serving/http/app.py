"""Answers the requests of the HTTP port: inference goes straight to its route, all else to the control routes."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from serving._front import Observer
from serving.control.models import Models
from serving.errors import UnknownModel
from serving.http.encoding import check_encoding, compress, decompress
from serving.http.gate import admit, audited, told
from serving.http.infer import InferenceRoutes
from serving.http.messages import HttpRequest, HttpResponse
from serving.http.observed import note_ended
from serving.http.route import inference_route
from serving.http.unknown_models import unknown_model
from serving.protocol.routing import routing_of_headers
from serving.security.gate import Gate
from serving.security.needs import INFER


class HttpControl(Protocol):
    """Answers every request that is not inference."""

    def __call__(self, request: HttpRequest) -> Awaitable[HttpResponse]:
        """Returns the response."""

    def at_once(self, request: HttpRequest) -> HttpResponse | None:
        """See HttpApplication.answer_at_once."""


class HttpApp:
    """Implements HttpApplication for the HTTP port.

    models: they answer inference. control: answers everything else. gate: decides which requests are admitted.
    observer: takes note of requests that have ended.
    """

    def __init__(self, models: Models, control: HttpControl, gate: Gate, observer: Observer) -> None:
        self._observer = observer
        self._models = models
        self._control = control
        self._gate = gate
        self._inference = InferenceRoutes(models)

    def admit(self, request: HttpRequest) -> None:
        """See HttpApplication. Refuses callers that are not allowed to infer, unknown models, and overloaded ones."""
        route = inference_route(request.method, request.path)
        if route is None:
            admit(self._gate, request)
        else:
            headers = request.headers
            if not self._gate.is_open:
                self._gate.admit(INFER, route.name, headers.get(b"authorization"), request.caller, "http", "infer")
            route.routing = routing_of_headers(headers)
            try:
                route.model = self._models.find(route.name, route.version, route.routing.routing_key)
            except UnknownModel as error:
                raise told(self._gate, request, error) from None
            route.model.check_load()
            request.route = route
        encoding = request.headers.get(b"content-encoding")
        if encoding is not None:
            check_encoding(encoding)

    def answer_at_once(self, request: HttpRequest) -> HttpResponse | None:
        """See HttpApplication."""
        return self._control.at_once(request) if request.route is None else None

    def ended(self, request: HttpRequest, response: HttpResponse, *, is_sent: bool) -> None:
        """See HttpApplication."""
        if self._observer.is_on:
            note_ended(self._observer, self._gate, request, response, is_sent=is_sent)

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """See HttpApplication."""
        headers = request.headers
        if b"content-encoding" in headers and request.room is not None:
            request.body = await decompress(request.body, headers[b"content-encoding"], request.room)
        route = request.route
        if route is None:
            return await self._answer_control(request)
        ask = self._inference.predict if route.is_v1 else self._inference.infer
        try:
            response = await ask(route, request)
        except UnknownModel as error:
            raise told(self._gate, request, error) from None
        accepts = headers.get(b"accept-encoding")
        if accepts is not None:
            response.content = await compress(response.content, accepts, response.headers)
        return response

    async def _answer_control(self, request: HttpRequest) -> HttpResponse:
        control, admission = self._control, request.admission
        response = await (control(request) if admission is None else audited(self._gate, admission, request, control))
        error = unknown_model(response) if response.status == 404 else None
        if error is not None:
            raise told(self._gate, request, error)
        return response
