"""Parses JSON from untrusted files: bounded size and depth, no duplicate keys, no NaN."""

from __future__ import annotations

import json
import re
from typing import Any

from storage.errors import UnsafeArtifact

MAX_DEPTH = 48
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")


def parse_json(data: bytes, *, what: str, max_bytes: int) -> Any:
    """Parses UTF-8 JSON. Raises UnsafeArtifact, naming `what`, when it is too large, too deep or not plain JSON."""
    if len(data) > max_bytes:
        raise UnsafeArtifact(f"{what}: {len(data)} bytes, at most {max_bytes} are read")
    _check_depth(data, what)
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UnsafeArtifact(f"{what}: not plain JSON ({error})") from None


def canonical_json(value: Any) -> bytes:
    """Returns the one text of a JSON value: sorted keys, no spaces, one newline at the end."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode() + b"\n"


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object repeats a key")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _check_depth(data: bytes, what: str) -> None:
    # Depth is counted on the bytes without strings, because the parser itself must never recurse further than allowed.
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", data)):
        depth += 1 if bracket.group() in b"[{" else -1
        if depth > MAX_DEPTH:
            raise UnsafeArtifact(f"{what}: nested deeper than {MAX_DEPTH} levels")
