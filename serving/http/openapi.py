"""The OpenAPI document of the HTTP port: every route, what it takes, what it answers, and every status that may come.

It is made of the messages, the pydantic models and the table of needs that the server works with, so that it cannot say
something else than they do.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import model_config_pb2, service_pb2

from serving.control.bodies import RegisterBody
from serving.control.metadata import COLUMN_PARAMETERS
from serving.http import openapi_schemas as schemas
from serving.http.model_control import VERBS
from serving.http.openapi_schemas import Schema, ref
from serving.protocol.json_text import dump_json
from serving.security.needs import http_need
from serving.security.principals import ADMIN, PREDICT, READ
from serving.version import server_version

_JSON = "application/json"
_BINARY = "application/octet-stream"
_HEADER_LENGTH = "Inference-Header-Content-Length"

# Every request may meet these: it is no HTTP, too long, too much at once, or a fault of ours.
_ALWAYS = (400, 413, 415, 431, 500, 503)
# Where somebody has to be known.
_ACCESS = (401, 403, 429)
_MEANINGS = {
    400: "malformed, or it does not fit the model; the text names the field",
    401: "nobody knows who asks",
    403: "it is known who asks, and it is not theirs to ask",
    404: "there is no such model, version, table, snapshot or region",
    409: "does not go together with what is there now",
    413: "the body is over the server's limit",
    415: "compressed in a way that this server does not know; Accept-Encoding names what it takes",
    429: "one client asks more often than it may",
    431: "the head is too long",
    500: "a fault of ours; the text refers to the server's log",
    501: "well formed, but this server does not do it",
    503: "not ready, or a bounded queue is full; try again",
    504: "the answer did not come before the deadline",
}
_ROLES = {PREDICT: "predict", READ: "read", ADMIN: "admin"}


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path. answer: the schema of status 200, None where its body is empty. body: of the request.

    errors: beside those that every request may meet. is_optional: the body may be left out.
    """

    method: str
    path: str
    summary: str
    tag: str
    answer: Schema | None = None
    body: Schema | None = None
    errors: tuple[int, ...] = ()
    is_optional: bool = True

    @property
    def id(self) -> str:
        """Unique in the document."""
        words = [part.strip("{}") for part in self.path.replace(":", "/").split("/")[1:]]
        return "_".join([self.method.lower(), *words]).replace(".", "_")


def _message(message: Any) -> Schema:
    return ref(schemas.message_name(message.DESCRIPTOR))


_OBJECT: Schema = {"type": "object"}
_REGION_MESSAGES = {
    "system": service_pb2.SystemSharedMemoryStatusResponse.RegionStatus,
    "cuda": service_pb2.CudaSharedMemoryStatusResponse.RegionStatus,
}
_MESSAGES = (
    service_pb2.ServerMetadataResponse,
    service_pb2.ModelMetadataResponse,
    service_pb2.ModelStatisticsResponse,
    service_pb2.RepositoryIndexResponse.ModelIndex,
    model_config_pb2.ModelConfig,
    *_REGION_MESSAGES.values(),
)


def operations() -> list[Operation]:
    """Every operation of the HTTP port."""
    return [*_server(), *_models(), *_inference(), *_repository(), *_shared_memory(), *_settings()]


def _server() -> Iterator[Operation]:
    live, ready = (schemas.closed({key: {"type": "boolean"}}, [key]) for key in ("live", "ready"))
    yield Operation("GET", "/v2/health/live", "Whether the process answers", "health", live)
    yield Operation("GET", "/v2/health/ready", "Whether requests are taken; 400: not yet", "health", ready)
    yield Operation(
        "GET", "/v2", "Name, version and extensions", "server", _message(service_pb2.ServerMetadataResponse)
    )
    yield Operation("GET", "/openapi.json", "This document", "server", _OBJECT)


def _models() -> Iterator[Operation]:
    unknown = (404,)
    statistics = _message(service_pb2.ModelStatisticsResponse)
    ready = schemas.closed({"name": {"type": "string"}, "ready": {"type": "boolean"}}, ["name", "ready"])
    yield Operation("GET", "/v2/models/stats", "Counts and times of all models", "models", statistics)
    for version in ("", "/versions/{version}"):
        path = "/v2/models/{name}" + version
        metadata = _message(service_pb2.ModelMetadataResponse)
        yield Operation("GET", path, "Inputs and outputs", "models", metadata, errors=unknown)
        yield Operation("GET", path + "/ready", "Whether requests are taken; 400: they are not", "models", ready)
        config = _message(model_config_pb2.ModelConfig)
        yield Operation("GET", path + "/config", "The completed config.pbtxt", "models", config, errors=unknown)
        yield Operation("GET", path + "/stats", "Counts and times", "models", statistics, errors=unknown)
    names = schemas.closed({"models": schemas.array({"type": "string"})}, ["models"])
    yield Operation("GET", "/v1/models", "Names of the models", "models", names)
    yield Operation("GET", "/v1/models/{name}", "Whether a model is ready", "models", ready, errors=unknown)


def _inference() -> Iterator[Operation]:
    errors = (404, 409, 501, 504)
    for version in ("", "/versions/{version}"):
        yield Operation(
            "POST",
            "/v2/models/{name}" + version + "/infer",
            "KServe v2 inference, tensors as JSON or as bytes behind it",
            "inference",
            ref("InferResponse"),
            ref("InferRequest"),
            errors,
            is_optional=False,
        )
    yield Operation(
        "POST",
        "/v1/models/{name}:predict",
        "KServe v1 inference, by rows or by columns",
        "inference",
        ref("PredictResponse"),
        ref("PredictRequest"),
        errors,
        is_optional=False,
    )


def _repository() -> Iterator[Operation]:
    entry = schemas.array(ref("RepositoryEntry"))
    ready = schemas.closed({"ready": {"type": "boolean"}})
    yield Operation("POST", "/v2/repository/index", "Every version and its state", "repository", entry, ready)
    path = "/v2/repository/models/{name}/"
    for what, summary in (
        ("snapshots", "What is served, retained, held, quarantined and waited for"),
        ("budget", "The DRAM budget, and what others would give"),
        ("sessions", "The sessions, and what each has done"),
    ):
        yield Operation("GET", path + what, summary, "repository", _OBJECT, errors=(404, 501))
    for verb, (body, _) in VERBS.items():
        answer = None if verb in ("load", "unload") else _OBJECT
        summary = f"{verb.capitalize()} a model"
        yield Operation("POST", path + verb, summary, "repository", answer, ref(body.__name__), (404, 409, 501))


def _shared_memory() -> Iterator[Operation]:
    errors = (404, 409, 501)
    for kind, message in _REGION_MESSAGES.items():
        base, tag = f"/v2/{kind}sharedmemory", "shared memory"
        region = base + "/region/{region}"
        status = schemas.array(_message(message))
        yield Operation("GET", base + "/status", "Registered regions", tag, status, errors=errors)
        yield Operation("GET", region + "/status", "A registered region", tag, status, errors=errors)
        summary = "Register a region" if kind == "system" else "Not supported: there are no CUDA regions"
        body = ref(RegisterBody.__name__) if kind == "system" else _OBJECT
        yield Operation("POST", region + "/register", summary, tag, None, body, errors, is_optional=False)
        yield Operation("POST", region + "/unregister", "Forget a region", tag, None, _OBJECT, errors)
        yield Operation("POST", base + "/unregister", "Forget all regions", tag, None, _OBJECT, errors)


def _settings() -> Iterator[Operation]:
    for path in ("/v2/trace/setting", "/v2/models/{name}/trace/setting", "/v2/logging"):
        what = "Logging settings" if path.endswith("logging") else "Trace settings"
        errors = (404, 501) if "{name}" in path else (501,)
        yield Operation("GET", path, what, "settings", _OBJECT, errors=errors)
        yield Operation("POST", path, what + " after a change", "settings", _OBJECT, _OBJECT, errors)


@functools.cache
def openapi_bytes() -> bytes:
    """The document as JSON."""
    return dump_json(openapi_document())


def openapi_document() -> dict[str, Any]:
    """The document: OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations():
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    messages = schemas.message_schemas([message.DESCRIPTOR for message in _MESSAGES])
    tensor = messages[schemas.message_name(service_pb2.ModelMetadataResponse.TensorMetadata.DESCRIPTOR)]
    tensor["properties"]["parameters"] = schemas.closed({key: {"type": "string"} for key in COLUMN_PARAMETERS})
    entry = schemas.message_schemas([service_pb2.RepositoryIndexResponse.ModelIndex.DESCRIPTOR])
    index = next(iter(entry.values())) | {"required": ["name"]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Emberline",
            "version": server_version(),
            "summary": "Inference of recommendation models: KServe v2 and v1, and what controls the models",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "."}],
        "paths": paths,
        "components": {
            "schemas": {
                **schemas.inference_schemas(),
                **schemas.body_schemas([RegisterBody, *(body for body, _ in VERBS.values())]),
                **messages,
                "RepositoryEntry": index,
            },
            "responses": {str(status): _refusal(status) for status in sorted(_MEANINGS)},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    need, _, _ = http_need(operation.method, operation.path)
    is_open = need.roles == 0
    statuses = {*_ALWAYS, *operation.errors, *(() if is_open else _ACCESS)}
    described: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": list(_parameters(operation)),
        "responses": {
            "200": _answer(operation),
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)},
        },
        # Whether a token is needed is the access file's matter; one that is shown is looked at.
        "security": [] if is_open else [{}, {"bearer": []}],
    }
    if operation.path.endswith("/ready"):
        described["responses"]["400"] = {**_answer(operation), "description": "not ready"}
    said = []
    if roles := [name for bit, name in _ROLES.items() if need.roles & bit]:
        said.append(f"For the role {' or '.join(roles)}.")
    if operation.tag == "inference":
        said.append("Bodies may be compressed both ways, by gzip or deflate.")
    if said:
        described["description"] = " ".join(said)
    if operation.body is not None:
        described["requestBody"] = {
            "content": _content(operation, operation.body),
            "required": not operation.is_optional,
        }
    return described


def _parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for part in operation.path.replace(":", "/").split("/"):
        if part.startswith("{"):
            schema: Schema = {"type": "string", "minLength": 1}
            if part == "{version}":
                schema["pattern"] = "^[0-9]+$"
            yield {"name": part.strip("{}"), "in": "path", "required": True, "schema": schema}
    if operation.tag != "inference":
        return
    names = ["Emberline-Routing-Key", "Emberline-Min-Snapshot"]
    if operation.body == ref("InferRequest"):
        yield {
            "name": _HEADER_LENGTH,
            "in": "header",
            "description": "bytes of JSON before the tensors; without it all of the body is JSON",
            "schema": {"type": "integer", "minimum": 1},
        }
    for name in names:
        yield {"name": name, "in": "header", "schema": {"type": "string", "maxLength": 1024}}


def _content(operation: Operation, schema: Schema) -> dict[str, Any]:
    content: dict[str, Any] = {_JSON: {"schema": schema}}
    if schema in (ref("InferRequest"), ref("InferResponse")):
        # JSON as in the other form, its length in a header, and behind it the tensors' bytes in their order.
        content[_BINARY] = {"schema": {"type": "string", "contentMediaType": _BINARY}}
    return content


def _answer(operation: Operation) -> dict[str, Any]:
    if operation.answer is None:
        return {"description": "done; the body is empty"}
    answer: dict[str, Any] = {"description": operation.summary, "content": _content(operation, operation.answer)}
    text: dict[str, Any] = {"schema": {"type": "string"}}
    if operation.answer == ref("InferResponse"):
        answer["headers"] = {_HEADER_LENGTH: {"schema": {"type": "integer"}}}
    if operation.answer == ref("PredictResponse"):
        names = ("Emberline-Snapshot", "Emberline-Sequence", "Emberline-Model-Version", "Emberline-Unresolved")
        answer["headers"] = dict(zip(names, itertools.repeat(text)))
    return answer


def _refusal(status: int) -> dict[str, Any]:
    described: dict[str, Any] = {
        "description": _MEANINGS[status],
        "content": {_JSON: {"schema": ref("Error")}},
    }
    if status == 429:
        described["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return described
