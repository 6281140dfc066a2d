"""What answers on the HTTP port: inference goes straight to its route, everything else to the control routes."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from serving.control.models import Models
from serving.errors import UnknownModel
from serving.http.encoding import check_encoding, decompress
from serving.http.gate import admit, admit_inference, audited, told
from serving.http.infer import InferenceRoutes, inference_route
from serving.http.messages import HttpRequest, HttpResponse, InferenceRoute
from serving.http.unknown_models import unknown_model
from serving.security.gate import Gate


class HttpControl(Protocol):
    """What answers all that is not inference."""

    def __call__(self, request: HttpRequest) -> Awaitable[HttpResponse]:
        """The response."""

    def at_once(self, request: HttpRequest) -> HttpResponse | None:
        """See HttpApplication.answer_at_once."""


class HttpApp:
    """See HttpApplication. models: who answers inference. control: who answers all else. gate: who is let in."""

    def __init__(self, models: Models, control: HttpControl, gate: Gate) -> None:
        self._control = control
        self._gate = gate
        self._inference = InferenceRoutes(models)

    def admit(self, request: HttpRequest) -> None:
        """See HttpApplication."""
        request.route = route = inference_route(request)
        if route is None:
            admit(self._gate, request)
            _check_encoding(request)
            return
        admit_inference(self._gate, request, route.name)
        try:
            self._inference.admit(route, request)
        except UnknownModel as error:
            raise told(self._gate, request, error) from None
        _check_encoding(request)

    def answer_at_once(self, request: HttpRequest) -> HttpResponse | None:
        """See HttpApplication."""
        return self._control.at_once(request) if request.route is None else None

    def answer(self, request: HttpRequest) -> Awaitable[HttpResponse]:
        """See HttpApplication."""
        if b"content-encoding" in request.headers:
            return self._unpacked(request)
        return self._answer(request)

    async def _unpacked(self, request: HttpRequest) -> HttpResponse:
        if request.room is not None:
            request.body = await decompress(request.body, request.headers[b"content-encoding"], request.room)
        return await self._answer(request)

    def _answer(self, request: HttpRequest) -> Awaitable[HttpResponse]:
        route = request.route
        return self._answer_control(request) if route is None else self._answer_inference(route, request)

    async def _answer_inference(self, route: InferenceRoute, request: HttpRequest) -> HttpResponse:
        try:
            return await self._inference.answer(route, request)
        except UnknownModel as error:
            raise told(self._gate, request, error) from None

    async def _answer_control(self, request: HttpRequest) -> HttpResponse:
        control, admission = self._control, request.admission
        response = await (control(request) if admission is None else audited(self._gate, admission, request, control))
        error = unknown_model(response) if response.status == 404 else None
        if error is not None:
            raise told(self._gate, request, error)
        return response


def _check_encoding(request: HttpRequest) -> None:
    encoding = request.headers.get(b"content-encoding")
    if encoding is not None:
        check_encoding(encoding)
