"""What the control routes read and write: JSON, by the same functions as everything else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response

from serving.errors import UnknownModel
from serving.http.messages import HttpResponse
from serving.protocol.json_text import dump_json, parse_object

_KNOWN = "emberline-known-models"


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response of JSON."""
    return Response(dump_json(content), status, headers, "application/json")


def known_models_header(error: BaseException) -> dict[str, str]:
    """Takes the names of an UnknownModel to where it is known which of them the caller may see. It goes no further."""
    return {_KNOWN: dump_json(error.known).decode("latin-1")} if isinstance(error, UnknownModel) else {}


def unknown_model(response: HttpResponse) -> UnknownModel | None:
    """The error that a control route answered with, if it was that one."""
    names = dict(response.headers).get(_KNOWN.encode())
    if names is None:
        return None
    return UnknownModel(parse_object(response.content, what="the response")["error"], json.loads(names))


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object of a body, an empty one of an empty body. Raises InvalidInput."""
    body = await request.body()
    return parse_object(body, what="the request") if body.strip() else {}
