"""JSON in and out: orjson, and the standard library's parser where a number is NaN or infinite."""

from __future__ import annotations

import json
from typing import Any

import orjson

from storage.errors import InvalidInput

_NOT_FINITE = (b"NaN", b"Infinity")


def parse_json(text: bytes | memoryview, *, what: str) -> Any:
    """Parses UTF-8 JSON, NaN and Infinity literals included. Raises InvalidInput that begins with `what`."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    data = bytes(text)
    if any(literal in data for literal in _NOT_FINITE):
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            reason = str(error)
    raise InvalidInput(f"{what} is not valid JSON: {reason}", field="body")


def parse_object(text: bytes | memoryview, *, what: str) -> dict[str, Any]:
    """Parses a JSON object. Raises InvalidInput."""
    value = parse_json(text, what=what)
    if type(value) is not dict:
        raise InvalidInput(f"{what} must be a JSON object, got {type(value).__name__}", field="body")
    return value


def dump_json(value: Any) -> bytes:
    """Writes JSON, numpy arrays as lists."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
