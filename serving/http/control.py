"""Answers the control routes from the repository of this process: the table of operations, mounted on FastAPI."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from starlette.routing import Match, Route

from serving.control.calls import ControlCalls
from serving.http.asgi import call_asgi
from serving.http.messages import LIVE, READY, HttpRequest, HttpResponse, error_response, health_response, wrong_method
from serving.http.metrics_app import PAGE, MetricsApp
from serving.http.operations import INFERENCE, ControlCall, Handler, response_of
from serving.http.routes import TABLE
from serving.http.unknown_models import known_models_header
from storage.errors import EmberlineError, NotFound

if TYPE_CHECKING:
    from serving.repository.model_repository import ModelRepository


class LocalHttpControl:
    """Implements HttpControl on one event loop. Health, which is open to all, skips the framework."""

    def __init__(self, repository: ModelRepository, metrics: MetricsApp | None = None) -> None:
        """metrics: answers /metrics, for callers that reach this port alone; None for nobody."""
        self._repository = repository
        self._metrics = metrics
        self._app = control_app(repository)

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        if self._metrics is not None and request.path == PAGE:
            return await self._metrics.answer(request)
        return self.at_once(request) or await call_asgi(self._app, request)

    def at_once(self, request: HttpRequest) -> HttpResponse | None:
        """See HttpControl. It answers health, which is open to all and requested most often."""
        if request.method == "GET" and request.path == LIVE:
            return health_response("live", self._repository.is_live())
        if request.method == "GET" and request.path == READY:
            return health_response("ready", self._repository.probes.answer())
        return None


def control_app(repository: ModelRepository) -> FastAPI:
    """Builds the application for everything but inference: every operation of the table that has a handler."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    calls = ControlCalls()
    for operation in TABLE.ranked:
        if operation.handler is not None:
            endpoint = _endpoint(operation.handler, repository, calls)
            app.add_api_route(operation.path, endpoint, methods=[operation.method], name=operation.id)

    @app.exception_handler(EmberlineError)
    @app.exception_handler(Exception)
    async def refuse(_: Request, error: Exception) -> Response:
        said = error_response(error)
        said.headers += known_models_header(error)
        return _sent(said)

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def refuse_route(request: Request, _: Exception) -> Response:
        methods = _methods(app, request)
        return _sent(wrong_method(request.method, methods) if methods else error_response(NotFound("Not Found")))

    return app


def _endpoint(
    handler: Handler, repository: ModelRepository, calls: ControlCalls
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        call = ControlCall(repository, calls, await request.body(), request.headers, **request.path_params)
        content = handler(call)
        return _sent(response_of(await content if inspect.isawaitable(content) else content))

    return answer


def _methods(app: FastAPI, request: Request) -> list[str]:
    """Returns the methods that a path allows; inference is not among the application's routes."""
    operation, _ = TABLE.find("POST", request.scope["path"])
    if operation is not None and operation.tag == INFERENCE:
        return ["POST"]
    fitting = [each for each in app.routes if isinstance(each, Route) and each.matches(request.scope)[0] != Match.NONE]
    methods = {method for route in fitting for method in route.methods or ()}
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)


def _sent(said: HttpResponse) -> Response:
    response = Response(said.content, said.status)
    response.raw_headers += said.headers
    return response
