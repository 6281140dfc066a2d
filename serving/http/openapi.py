"""Builds the OpenAPI document of the HTTP port: every route, its request, its response, and every possible status.

It uses the table of operations, and the messages and pydantic models that the server works with, so that the document
and the server agree.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from tritonclient.grpc import service_pb2

from serving.control.bodies import ControlBody
from serving.control.metadata import COLUMN_PARAMETERS
from serving.http import openapi_schemas as schemas
from serving.http.openapi_schemas import Schema, Shape, ref
from serving.http.operations import INFERENCE, Operation
from serving.security.principals import ADMIN, FEEDBACK, PREDICT, READ
from serving.version import server_version

_JSON = "application/json"
_BINARY = "application/octet-stream"
_HEADER_LENGTH = "Inference-Header-Content-Length"

# The statuses that every request may get: it is not HTTP, too long, too much at once, or met a fault of the server.
_ALWAYS = (400, 413, 415, 431, 500, 503)
# The statuses of operations that are not open to all.
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
_ENTRY = service_pb2.RepositoryIndexResponse.ModelIndex
_ROLES = {PREDICT: "predict", READ: "read", FEEDBACK: "feedback", ADMIN: "admin"}


def openapi_document(operations: Iterable[Operation]) -> dict[str, Any]:
    """Returns the OpenAPI 3.1 document of a port with these operations."""
    described = [operation for operation in operations if operation.summary]
    paths: dict[str, dict[str, Any]] = {}
    for operation in described:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    shapes = [shape for operation in described for shape in (operation.body, operation.answer)]
    types = [*dict.fromkeys(schemas.types_of(shapes)), _ENTRY]
    bodies = [each for each in types if issubclass(each, ControlBody)]
    messages = schemas.message_schemas([each.DESCRIPTOR for each in types if not issubclass(each, ControlBody)])
    tensor = messages[schemas.message_name(service_pb2.ModelMetadataResponse.TensorMetadata.DESCRIPTOR)]
    tensor["properties"]["parameters"] = schemas.closed(
        {key: {"type": "boolean" if key == "flatten" else "string"} for key in COLUMN_PARAMETERS}
    )
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
                **schemas.body_schemas(bodies),
                **messages,
                # The index omits empty fields.
                "RepositoryEntry": messages[schemas.message_name(_ENTRY.DESCRIPTOR)] | {"required": ["name"]},
            },
            "responses": {str(status): _refusal(status) for status in sorted(_MEANINGS)},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    need = operation.need
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
        # The access file decides whether a token is needed; a token that is sent is checked.
        "security": [] if is_open else [{}, {"bearer": []}],
    }
    if operation.path.endswith("/ready"):
        described["responses"]["400"] = {**_answer(operation), "description": "not ready"}
    said = []
    if roles := [name for bit, name in _ROLES.items() if need.roles & bit]:
        said.append(f"For the role {(' and ' if need.all_roles else ' or ').join(roles)}.")
    if operation.tag == INFERENCE:
        said.append("Bodies may be compressed both ways, by gzip or deflate.")
    if said:
        described["description"] = " ".join(said)
    if operation.body is not None:
        described["requestBody"] = {
            "content": _content(operation.body),
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
    if operation.tag != INFERENCE:
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


def _content(shape: Shape) -> dict[str, Any]:
    schema = schemas.schema_of(shape)
    content: dict[str, Any] = {_JSON: {"schema": schema}}
    if schema in (ref("InferRequest"), ref("InferResponse")):
        # The same JSON, its length in a header, followed by the tensors' bytes in order.
        content[_BINARY] = {"schema": {"type": "string", "contentMediaType": _BINARY}}
    return content


def _answer(operation: Operation) -> dict[str, Any]:
    if operation.answer is None:
        return {"description": "done; the body is empty"}
    answer: dict[str, Any] = {"description": operation.summary, "content": _content(operation.answer)}
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
