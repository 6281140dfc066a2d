"""Health, metadata, configuration, statistics and the index: the routes where a framework does no harm."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from serving.control import metadata
from serving.control.calls import ControlCalls
from serving.errors import UnknownModel, status_of
from serving.http.control_messages import json_response, read_object
from serving.http.messages import health_response
from serving.http.model_control import add_model_control
from serving.http.openapi import openapi_bytes
from serving.http.route import inference_route
from serving.http.shared_memory import add_settings, add_shared_memory
from serving.http.unknown_models import known_models_header
from serving.protocol.proto_json import message_to_json
from serving.repository.model_repository import ModelRepository
from storage.errors import EmberlineError, InvalidInput, Unavailable


def control_app(repository: ModelRepository) -> FastAPI:
    """The application for everything but inference."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    calls = ControlCalls()

    @app.get("/v2/health/live")
    async def live() -> Response:
        return _answered("live", repository.is_live())

    @app.get("/v2/health/ready")
    async def ready() -> Response:
        return _answered("ready", repository.is_ready())

    @app.get("/v2")
    @app.get("/v2/")
    async def server() -> Response:
        return _message(metadata.server_metadata())

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return Response(openapi_bytes(), media_type="application/json")

    @app.get("/v2/models/stats")
    async def all_statistics() -> Response:
        return _message(metadata.model_statistics(await calls.run(lambda: repository.answerers())))

    @app.get("/v2/models/{name}")
    @app.get("/v2/models/{name}/versions/{version}")
    async def model(name: str, version: str = "") -> Response:
        return json_response(metadata.model_metadata_json(repository.get(name, version), repository.versions(name)))

    @app.get("/v2/models/{name}/ready")
    @app.get("/v2/models/{name}/versions/{version}/ready")
    async def model_ready(name: str, version: str = "") -> Response:
        return _answered("ready", repository.is_model_ready(name, version), name=name)

    @app.get("/v2/models/{name}/config")
    @app.get("/v2/models/{name}/versions/{version}/config")
    async def model_config(name: str, version: str = "") -> Response:
        return json_response(message_to_json(repository.get(name, version).proto))

    @app.get("/v2/models/{name}/stats")
    @app.get("/v2/models/{name}/versions/{version}/stats")
    async def statistics(name: str, version: str = "") -> Response:
        models = [repository.get(name, version)] if version else repository.loaded_versions(name)
        return _message(metadata.model_statistics(models))

    @app.post("/v2/repository/index")
    async def index(request: Request) -> Response:
        ready_only = (await read_object(request)).get("ready", False)
        if type(ready_only) is not bool:
            raise InvalidInput("'ready' must be true or false", field="ready")
        answer = metadata.repository_index(await calls.run(repository.index), ready_only=ready_only)
        return json_response([_without_empty(message_to_json(entry)) for entry in answer.models])

    @app.get("/v1/models")
    async def v1_models() -> Response:
        return json_response({"models": repository.names})

    @app.get("/v1/models/{name}")
    async def v1_model(name: str) -> Response:
        if name.endswith(":predict"):
            raise HTTPException(405)
        if name not in repository.names:
            raise UnknownModel.of(name, repository.names)
        if not repository.is_model_ready(name):
            repository.get(name)  # raises with the reason
            raise Unavailable(f"model {name!r} is not ready")
        return json_response({"name": name, "ready": True})

    add_shared_memory(app, repository, calls)
    add_settings(app, repository)
    add_model_control(app, repository, calls)

    @app.exception_handler(EmberlineError)
    @app.exception_handler(Exception)
    async def refuse(_: Request, error: Exception) -> Response:
        status, _, text = status_of(error)
        return json_response({"error": text}, status, known_models_header(error))

    @app.exception_handler(HTTPException)
    async def refuse_route(request: Request, error: HTTPException) -> Response:
        methods = _methods(app, request) if error.status_code in (404, 405) else []
        if not methods:
            return json_response({"error": str(error.detail)}, error.status_code, dict(error.headers or {}))
        allowed = ", ".join(methods)
        text = f"{request.method} is not allowed here; send {' or '.join(methods)}"
        return json_response({"error": text}, 405, {"allow": allowed})

    return app


def _answered(key: str, is_so: bool, **beside: str) -> Response:
    said = health_response(key, is_so, **beside)
    return Response(said.content, said.status, media_type="application/json")


def _methods(app: FastAPI, request: Request) -> list[str]:
    """What a path may be asked with; inference is not of the application's routes."""
    if inference_route("POST", request.url.path) is not None:
        return ["POST"]
    matching = [route for route in app.routes if route.matches(request.scope)[0] != Match.NONE]
    methods = {method for route in matching for method in getattr(route, "methods", None) or ()}
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)


def _message(message: Any) -> Response:
    return json_response(message_to_json(message))


def _without_empty(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if value != ""}
