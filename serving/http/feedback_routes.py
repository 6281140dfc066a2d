"""Defines the routes of feedback: labels that come in, and what they say of the scores."""

from __future__ import annotations

import time
from typing import Any

from pydantic import JsonValue

from serving.control.feedback_body import FeedbackEvent, read_feedback
from serving.http.openapi_schemas import ANY_OBJECT
from serving.http.operations import ControlCall, Operation
from serving.security.needs import GIVE_FEEDBACK, LOOK_AT_MODEL


async def _take(call: ControlCall) -> dict[str, JsonValue]:
    def take() -> dict[str, JsonValue]:
        content = call.read_object()  # on this thread: a body may have megabytes
        feedback = call.repository.feedback(call.name)
        model = call.repository.get(call.name)
        outputs = [each.name for each in model.signature.outputs if each.dtype.startswith("FP") and _is_one(each.dims)]
        labels, skewed = read_feedback(content, outputs, time.time())
        return {"labels": len(labels), **feedback.label(labels, skewed)}

    return await call.run(take)


def _is_one(dims: tuple[int, ...]) -> bool:
    return all(size == 1 for size in dims)


async def _show(call: ControlCall) -> dict[str, Any]:
    return await call.run(lambda: {"model": call.name, **call.repository.feedback(call.name).report()})


FEEDBACK_OPERATIONS = (
    Operation(
        "POST",
        "/v2/models/{name}/feedback",
        GIVE_FEEDBACK,
        _take,
        "Labels of rows that were scored, by the ids of their requests",
        "models",
        ANY_OBJECT,
        FeedbackEvent,
        (404, 409, 503),
        is_optional=False,
    ),
    Operation(
        "GET",
        "/v2/models/{name}/feedback",
        LOOK_AT_MODEL,
        _show,
        "What is logged of requests, and how good the scores of labelled ones were",
        "models",
        ANY_OBJECT,
        errors=(404, 501),
    ),
)
