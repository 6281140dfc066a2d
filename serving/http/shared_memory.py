"""The routes of Triton's shared memory extensions, and of its trace and log settings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request, Response

from serving.control.bodies import RegisterBody
from serving.control.calls import ControlCalls
from serving.control.fixed_settings import LOG, TRACE, check_log_settings, check_trace_settings
from serving.http.control_messages import json_response, read_object
from serving.protocol.json_text import parse_object
from serving.repository.model_repository import ModelRepository
from serving.repository.regions import RegionName
from storage.errors import Unsupported


def add_shared_memory(app: FastAPI, repository: ModelRepository, calls: ControlCalls) -> None:
    """Adds /v2/systemsharedmemory and /v2/cudasharedmemory. There is no memory of a GPU to register."""
    regions = repository.regions

    @app.get("/v2/systemsharedmemory/status")
    @app.get("/v2/systemsharedmemory/region/{region}/status")
    async def status(region: str = "") -> Response:
        return json_response([_without_number(said) for said in regions.status(region)])

    @app.post("/v2/systemsharedmemory/region/{region}/register")
    async def register(region: str, request: Request) -> Response:
        body = RegisterBody.parse(parse_object(await request.body(), what="the request"))
        said = RegionName(region, body.key, body.offset, body.byte_size)
        await calls.run(lambda: regions.register(said))
        return Response()

    @app.post("/v2/systemsharedmemory/unregister")
    @app.post("/v2/systemsharedmemory/region/{region}/unregister")
    async def unregister(region: str = "") -> Response:
        await calls.run(lambda: regions.unregister(region))
        return Response()

    @app.get("/v2/cudasharedmemory/status")
    @app.get("/v2/cudasharedmemory/region/{region}/status")
    async def cuda_status(region: str = "") -> Response:
        return json_response([])

    @app.post("/v2/cudasharedmemory/region/{region}/register")
    async def cuda_register(region: str) -> Response:
        raise Unsupported("CUDA shared memory is not supported; use system shared memory")

    @app.post("/v2/cudasharedmemory/unregister")
    @app.post("/v2/cudasharedmemory/region/{region}/unregister")
    async def cuda_unregister(region: str = "") -> Response:
        return Response()


def add_settings(app: FastAPI, repository: ModelRepository) -> None:
    """Adds the trace and log settings, whose answers are fixed."""

    @app.get("/v2/trace/setting")
    async def trace() -> Response:
        return json_response(TRACE)

    @app.post("/v2/trace/setting")
    async def set_trace(request: Request) -> Response:
        check_trace_settings(await read_object(request))
        return json_response(TRACE)

    @app.get("/v2/models/{name}/trace/setting")
    async def model_trace(name: str) -> Response:
        repository.get(name)
        return json_response(TRACE)

    @app.post("/v2/models/{name}/trace/setting")
    async def set_model_trace(name: str, request: Request) -> Response:
        repository.get(name)
        check_trace_settings(await read_object(request))
        return json_response(TRACE)

    @app.get("/v2/logging")
    async def log() -> Response:
        return json_response(LOG)

    @app.post("/v2/logging")
    async def set_log(request: Request) -> Response:
        check_log_settings(await read_object(request))
        return json_response(LOG)


def _without_number(said: RegionName) -> dict[str, Any]:
    content = asdict(said)
    del content["number"]
    return content
