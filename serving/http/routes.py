"""Holds every operation of the HTTP port in one table, used for answering, for access control and for OpenAPI."""

from __future__ import annotations

import functools

from serving.http.feedback_routes import FEEDBACK_OPERATIONS
from serving.http.messages import JSON, HttpResponse
from serving.http.model_control import MODEL_CONTROL_OPERATIONS
from serving.http.model_routes import MODEL_OPERATIONS
from serving.http.observing_routes import SETTINGS_OPERATIONS
from serving.http.openapi import openapi_document
from serving.http.openapi_schemas import ANY_OBJECT
from serving.http.operations import ControlCall, Operation, OperationTable
from serving.http.shared_memory import SHARED_MEMORY_OPERATIONS
from serving.protocol.json_text import dump_json
from serving.security.needs import UNKNOWN, Need


def _openapi(call: ControlCall) -> HttpResponse:
    return HttpResponse(200, _document(), [JSON])


@functools.cache
def _document() -> bytes:
    return dump_json(openapi_document(TABLE.operations))


TABLE = OperationTable(
    (
        Operation("GET", "/openapi.json", UNKNOWN, _openapi, "This document", "server", ANY_OBJECT),
        *MODEL_OPERATIONS,
        *FEEDBACK_OPERATIONS,
        *MODEL_CONTROL_OPERATIONS,
        *SHARED_MEMORY_OPERATIONS,
        *SETTINGS_OPERATIONS,
    )
)


def http_need(method: str, path: str) -> tuple[Need, str, str]:
    """Returns the permission that a request needs, the model that it is about, and the name of the call.

    A path that is in the table with another method is unknown.
    """
    operation, values = TABLE.find(method, path)
    last = path.rpartition("/")[2]
    if operation is None:
        return UNKNOWN, "", last
    return operation.need, values.get("name", ""), operation.need.call or last
