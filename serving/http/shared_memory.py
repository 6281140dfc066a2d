"""Defines the routes of Triton's shared memory extensions."""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import Any, NoReturn

from tritonclient.grpc import service_pb2

from serving.control.bodies import RegisterBody
from serving.http.openapi_schemas import ANY_OBJECT
from serving.http.operations import ControlCall, Operation
from serving.protocol.json_text import parse_object
from serving.repository.regions import RegionName
from serving.security.needs import REGIONS
from storage.errors import Unsupported


def _status(call: ControlCall) -> list[dict[str, Any]]:
    entries = [asdict(said) for said in call.repository.regions.status(call.region)]
    return [{key: value for key, value in entry.items() if key != "number"} for entry in entries]


async def _register(call: ControlCall) -> None:
    body = RegisterBody.parse(parse_object(call.body, what="the request"))
    said = RegionName(call.region, body.key, body.offset, body.byte_size)
    await call.run(lambda: call.repository.regions.register(said))


async def _unregister(call: ControlCall) -> None:
    await call.run(lambda: call.repository.regions.unregister(call.region))


def _cuda_status(call: ControlCall) -> list[dict[str, Any]]:
    return []


def _cuda_register(call: ControlCall) -> NoReturn:
    raise Unsupported("CUDA shared memory is not supported; use system shared memory")


def _cuda_unregister(call: ControlCall) -> None:
    pass


_System = service_pb2.SystemSharedMemoryStatusResponse.RegionStatus
_Cuda = service_pb2.CudaSharedMemoryStatusResponse.RegionStatus
_SYSTEM, _CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
_REGION = "/region/{region}"
_get = functools.partial(Operation, "GET", need=REGIONS, tag="shared memory", errors=(404, 409, 501))
_post = functools.partial(Operation, "POST", need=REGIONS, tag="shared memory", body=ANY_OBJECT, errors=(404, 409, 501))
_NO_REGIONS = "Not supported: there are no CUDA regions"

SHARED_MEMORY_OPERATIONS = (
    _get(_SYSTEM + "/status", handler=_status, summary="Registered regions", answer=[_System]),
    _get(_SYSTEM + _REGION + "/status", handler=_status, summary="A registered region", answer=[_System]),
    _post(
        _SYSTEM + _REGION + "/register",
        handler=_register,
        summary="Register a region",
        body=RegisterBody,
        is_optional=False,
    ),
    _post(_SYSTEM + _REGION + "/unregister", handler=_unregister, summary="Forget a region"),
    _post(_SYSTEM + "/unregister", handler=_unregister, summary="Forget all regions"),
    _get(_CUDA + "/status", handler=_cuda_status, summary="Registered regions", answer=[_Cuda]),
    _get(_CUDA + _REGION + "/status", handler=_cuda_status, summary="A registered region", answer=[_Cuda]),
    _post(_CUDA + _REGION + "/register", handler=_cuda_register, summary=_NO_REGIONS, is_optional=False),
    _post(_CUDA + _REGION + "/unregister", handler=_cuda_unregister, summary="Forget a region"),
    _post(_CUDA + "/unregister", handler=_cuda_unregister, summary="Forget all regions"),
)
