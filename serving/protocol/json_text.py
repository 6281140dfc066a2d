"""Reads and writes JSON with orjson, and with the standard library's parser where a number is NaN or infinite."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson

from storage.errors import InvalidInput

# The bounds of one text. The parser holds the interpreter's lock: a text within these bounds takes 20 ms at most, and
# larger data should be sent as binary tensors. Every value accounts for at least one of the marks, every list, object
# and string for two.
MAX_JSON_BYTES = 8 << 20
MAX_JSON_MARKS = 200_000
# The bound of a text with NaN or Infinity, because the standard library's parser is slower.
MAX_MARKS_WITH_NAN = 80_000
_MARKS = b',[{:"'
# Shorter texts are parsed fast enough whatever they contain.
SHORT_JSON_BYTES = 64 << 10
_NOT_FINITE = (b"NaN", b"Infinity")
_SURROGATE = b"\\ud"


def parse_json(text: bytes | memoryview, *, what: str) -> Any:
    """Parses UTF-8 JSON, including NaN and Infinity literals. Raises InvalidInput that begins with `what`.

    A text over the bounds above is refused before it is parsed.
    """
    marks = _checked_marks(text, what) if len(text) > SHORT_JSON_BYTES else 0
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    data = bytes(text)
    if any(literal in data for literal in _NOT_FINITE):
        if marks > MAX_MARKS_WITH_NAN:
            raise _too_many(what, marks, MAX_MARKS_WITH_NAN, " beside NaN or Infinity")
        try:
            value = json.loads(data.decode())
            if _SURROGATE in data.lower():
                # Half of a surrogate pair is not text and could not be encoded again; orjson refuses it by itself.
                json.dumps(value, ensure_ascii=False).encode()
            return value
        except (ValueError, RecursionError) as error:
            reason = str(error)
    raise InvalidInput(f"{what} is not valid JSON: {reason}", field="body")


def _checked_marks(text: bytes | memoryview, what: str) -> int:
    """Counts the marks of a text. Raises InvalidInput if it is too long or has too many."""
    size = len(text)
    if size > MAX_JSON_BYTES:
        raise InvalidInput(
            f"{what} has {size} bytes of JSON, at most {MAX_JSON_BYTES} are taken; send binary tensors", field="body"
        )
    # numpy releases the interpreter's lock meanwhile. Marks within strings count too.
    found = np.frombuffer(text, np.uint8)
    marks = sum(int(np.count_nonzero(found == mark)) for mark in _MARKS)
    if marks > MAX_JSON_MARKS:
        raise _too_many(what, marks, MAX_JSON_MARKS)
    return marks


def _too_many(what: str, marks: int, most: int, beside: str = "") -> InvalidInput:
    return InvalidInput(
        f"{what} has {marks} commas, colons, quotes and brackets that open, at most {most} are taken{beside}; send "
        "fewer rows, or binary tensors",
        field="body",
    )


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
    """Writes JSON as `dump_json` does, but NaN and infinities as the literals that `parse_json` reads."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=_listed).encode()


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")
