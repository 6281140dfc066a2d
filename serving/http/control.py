"""Answers the control routes of the table from the repository of this process."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from serving.control.calls import ControlCalls
from serving.http.messages import LIVE, READY, HttpRequest, HttpResponse, error_response, health_response, wrong_method
from serving.http.operations import ControlCall, response_of
from serving.http.routes import TABLE
from serving.http.unknown_models import known_models_header
from storage.errors import NotFound

if TYPE_CHECKING:
    from serving.repository.model_repository import ModelRepository


class LocalHttpControl:
    """See HttpControl. One event loop."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository
        self._calls = ControlCalls()

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.at_once(request) or await self._answer(request)

    def at_once(self, request: HttpRequest) -> HttpResponse | None:
        """See HttpControl: health, which is open to all and asked for most often."""
        if request.method == "GET" and request.path == LIVE:
            return health_response("live", self._repository.is_live())
        if request.method == "GET" and request.path == READY:
            return health_response("ready", self._repository.is_ready())
        return None

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        operation, values = TABLE.find(request.method, request.path)
        if operation is None or operation.handler is None:
            methods = TABLE.methods(request.path)
            return wrong_method(request.method, methods) if methods else error_response(NotFound("Not Found"))
        try:
            content = operation.handler(ControlCall(self._repository, self._calls, request.body, **values))
            return response_of(await content if inspect.isawaitable(content) else content)
        except Exception as error:
            response = error_response(error)
            response.headers += known_models_header(error)
            return response
