"""What the control routes read and write: JSON, by the same functions as everything else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response

from serving.protocol.json_text import dump_json, parse_object


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response of JSON."""
    return Response(dump_json(content), status, headers, "application/json")


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object of a body, an empty one of an empty body. Raises InvalidInput."""
    body = await request.body()
    return parse_object(body, what="the request") if body.strip() else {}
