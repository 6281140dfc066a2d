"""Defines the operations that read the server and its models: metadata, configuration, statistics, index, KServe v1."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message
from tritonclient.grpc import model_config_pb2, service_pb2

from serving.control import metadata
from serving.errors import UnknownModel
from serving.http.messages import LIVE, READY, HttpResponse, health_response, wrong_method
from serving.http.openapi_schemas import ANY_OBJECT, Schema, array, closed, ref
from serving.http.operations import INFERENCE, ControlCall, Operation
from serving.model_config.in_force import server_settings
from serving.protocol.proto_json import message_to_json
from serving.security.needs import (
    ABOUT_MODEL,
    INFER,
    KNOWN,
    LOOK_AT_MODEL,
    LOOK_AT_SERVER,
    OPEN,
    SERVER,
    Need,
    control_need,
)
from storage.errors import InvalidInput, Unavailable


def _live(call: ControlCall) -> HttpResponse:
    return health_response("live", call.repository.is_live())


def _all_ready(call: ControlCall) -> HttpResponse:
    return health_response("ready", call.repository.probes.answer())


def _server(call: ControlCall) -> Message:
    return metadata.server_metadata()


async def _all_statistics(call: ControlCall) -> Message:
    return metadata.model_statistics(await call.run(lambda: call.repository.answerers()))


def _statistics(call: ControlCall) -> Message:
    return metadata.model_statistics([call.model] if call.version else call.repository.loaded_versions(call.name))


def _metadata(call: ControlCall) -> dict[str, Any]:
    return metadata.model_metadata_json(call.model, call.repository.versions(call.name))


def _ready(call: ControlCall) -> HttpResponse:
    return health_response("ready", call.repository.is_model_ready(call.name, call.version), name=call.name)


def _config(call: ControlCall) -> Message:
    return call.model.proto


def _settings(call: ControlCall) -> dict[str, Any]:
    return {"of": "server", "name": metadata.SERVER_NAME, "options": server_settings(call.repository.config)}


def _names(call: ControlCall) -> dict[str, Any]:
    return {"models": call.repository.names}


async def _index(call: ControlCall) -> list[dict[str, Any]]:
    ready_only = call.read_object().get("ready", False)
    if type(ready_only) is not bool:
        raise InvalidInput("'ready' must be true or false", field="ready")
    answer = metadata.repository_index(await call.run(call.repository.index), ready_only=ready_only)
    entries = [message_to_json(entry) for entry in answer.models]
    return [{key: value for key, value in entry.items() if value != ""} for entry in entries]


def _v1_model(call: ControlCall) -> HttpResponse | dict[str, Any]:
    name, repository = call.name, call.repository
    if name.endswith(":predict"):
        return wrong_method("GET", ["POST"])
    if name not in repository.names:
        raise UnknownModel.of(name, repository.names)
    if not repository.is_model_ready(name):
        repository.get(name)  # raises with the reason
        raise Unavailable(f"model {name!r} is not ready")
    return {"name": name, "ready": True}


_TEXT: Schema = {"type": "string"}
_BOOLEAN: Schema = {"type": "boolean"}
_LIVE, _READY = closed({"live": _BOOLEAN}, ["live"]), closed({"ready": _BOOLEAN}, ["ready"])
_MODEL_READY = closed({"name": _TEXT, "ready": _BOOLEAN}, ["name", "ready"])
_OPTIONS = "The server's options in force, and where each comes from"
_WHETHER_READY = "Whether requests are taken; 400: they are not"
_NAMES = closed({"models": array(_TEXT)}, ["models"])
_SERVER, _MODEL = service_pb2.ServerMetadataResponse, service_pb2.ModelMetadataResponse
_STATISTICS, _CONFIG = service_pb2.ModelStatisticsResponse, model_config_pb2.ModelConfig
_get = functools.partial(Operation, "GET", tag="models")
# Answered by serving/http/infer.py, which reads such a path without this table.
_infer = functools.partial(Operation, "POST", need=INFER, tag=INFERENCE, errors=(404, 409, 501, 504), is_optional=False)


def _of_model(path: str) -> Iterator[Operation]:
    yield _get(path, ABOUT_MODEL, _metadata, "Inputs and outputs", answer=_MODEL, errors=(404,))
    yield _get(path + "/ready", ABOUT_MODEL, _ready, _WHETHER_READY, answer=_MODEL_READY)
    yield _get(path + "/config", ABOUT_MODEL, _config, "The completed config.pbtxt", answer=_CONFIG, errors=(404,))
    yield _get(path + "/stats", LOOK_AT_MODEL, _statistics, "Counts and times", answer=_STATISTICS, errors=(404,))
    what = "KServe v2 inference, tensors as JSON or as bytes behind it"
    yield _infer(path + "/infer", summary=what, answer=ref("InferResponse"), body=ref("InferRequest"))


_V1_PREDICT = _infer(
    "/v1/models/{name}:predict",
    summary="KServe v1 inference, by rows or by columns",
    answer=ref("PredictResponse"),
    body=ref("PredictRequest"),
)

MODEL_OPERATIONS = (
    Operation("GET", LIVE, OPEN, _live, "Whether the process answers", "health", _LIVE),
    Operation("GET", READY, OPEN, _all_ready, "Whether requests are taken; 400: not yet", "health", _READY),
    Operation("GET", "/v2", KNOWN, _server, "Name, version and extensions", "server", _SERVER),
    Operation("GET", "/v2/", Need(KNOWN.roles, call="v2"), _server),
    # It names files of the machine, which is for those who are allowed to change what is served.
    Operation("GET", "/v2/options", control_need(SERVER), _settings, _OPTIONS, "server", ANY_OBJECT),
    Operation("GET", "/metrics", LOOK_AT_SERVER),
    _get("/v2/models/stats", LOOK_AT_SERVER, _all_statistics, "Counts and times of all models", answer=_STATISTICS),
    *_of_model("/v2/models/{name}"),
    *_of_model("/v2/models/{name}/versions/{version}"),
    _get("/v1/models", LOOK_AT_SERVER, _names, "Names of the models", answer=_NAMES),
    _get("/v1/models/{name}", ABOUT_MODEL, _v1_model, "Whether a model is ready", answer=_MODEL_READY, errors=(404,)),
    _V1_PREDICT,
    Operation(
        "POST",
        "/v2/repository/index",
        LOOK_AT_SERVER,
        _index,
        "Every version and its state",
        "repository",
        [ref("RepositoryEntry")],
        closed({"ready": _BOOLEAN}),
    ),
)
