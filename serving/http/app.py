"""What answers on the HTTP port: inference goes straight to its route, everything else to the control routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from serving.http.asgi import call_asgi
from serving.http.infer import InferenceRoutes, inference_route
from serving.http.messages import HttpRequest, HttpResponse
from serving.models import Models

HttpControl = Callable[[HttpRequest], Awaitable[HttpResponse]]


class HttpApp:
    """See HttpApplication. models: who answers inference. control: who answers all else."""

    def __init__(self, models: Models, control: HttpControl) -> None:
        self._control = control
        self._inference = InferenceRoutes(models)

    def admit(self, request: HttpRequest) -> None:
        """See HttpApplication."""
        request.route = route = inference_route(request)
        if route is not None:
            self._inference.admit(route, request)

    def answer(self, request: HttpRequest) -> Awaitable[HttpResponse]:
        """See HttpApplication."""
        if request.route is not None:
            return self._inference.answer(request.route, request)
        return self._control(request)


class LocalHttpControl:
    """The control routes of this process. app: as `control_app` makes it."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        return await call_asgi(self._app, request)
