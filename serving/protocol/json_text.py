"""JSON in and out: orjson, and the standard library's parser where a number is NaN or infinite."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson

from storage.errors import InvalidInput

_NOT_FINITE = (b"NaN", b"Infinity")
_SURROGATE = b"\\ud"


def parse_json(text: bytes | memoryview, *, what: str) -> Any:
    """Parses UTF-8 JSON, NaN and Infinity literals included. Raises InvalidInput that begins with `what`."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    data = bytes(text)
    if any(literal in data for literal in _NOT_FINITE):
        try:
            value = json.loads(data.decode())
            if _SURROGATE in data.lower():
                # Half of a pair is no text, and could not be written down again; orjson refuses it by itself.
                json.dumps(value, ensure_ascii=False).encode()
            return value
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
    """Writes JSON, numpy arrays as lists; NaN and infinities as null."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def dump_json_with_nan(value: Any) -> bytes:
    """As `dump_json`, NaN and infinities as the literals that `parse_json` reads."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=_listed).encode()


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")
