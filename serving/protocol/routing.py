"""Reads the routing of a request: its routing key, and the snapshot that the answer must include."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage.errors import InvalidInput

MAX_KEY_LENGTH = 1024
_KEY_HEADER = b"emberline-routing-key"
_SNAPSHOT_HEADER = b"emberline-min-snapshot"


@dataclass(frozen=True, slots=True)
class Routing:
    """Holds the routing that a request asks for."""

    #: Requests of one key go to the same arm while a canary runs; "" for none.
    routing_key: str = ""
    #: An id or "V.S" that the answering snapshot has to include, "" for none; the model checks its form.
    min_snapshot: str = ""


ANYWHERE = Routing()


def routing_of_headers(headers: Mapping[bytes, bytes]) -> Routing:
    """Reads the HTTP headers Emberline-Routing-Key and Emberline-Min-Snapshot. Raises InvalidInput."""
    key, snapshot = headers.get(_KEY_HEADER), headers.get(_SNAPSHOT_HEADER)
    if key is None and snapshot is None:
        return ANYWHERE
    return Routing(
        "" if key is None else _text("header Emberline-Routing-Key", "routing_key", _decoded(key)),
        "" if snapshot is None else _text("header Emberline-Min-Snapshot", "min_snapshot", _decoded(snapshot)),
    )


def routing_of_parameters(parameters: Mapping[str, Any], beside: Routing = ANYWHERE) -> Routing:
    """Reads a request's parameters `routing_key` (a string or a whole number) and `min_snapshot` (a string).

    beside: the routing of the headers; a parameter overrides the header of the same name. Raises InvalidInput.
    """
    if "routing_key" not in parameters and "min_snapshot" not in parameters:
        return beside
    key = parameters.get("routing_key")
    if type(key) is int:
        key = str(key) if abs(key) < 2**64 else key
    snapshot = parameters.get("min_snapshot")
    return Routing(
        beside.routing_key if key is None else _text("parameter 'routing_key'", "routing_key", key),
        beside.min_snapshot if snapshot is None else _text("parameter 'min_snapshot'", "min_snapshot", snapshot),
    )


def _decoded(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _text(where: str, field: str, value: Any) -> str:
    kind = "a string or a 64-bit number" if field == "routing_key" else 'a snapshot\'s id or "VERSION.SEQUENCE"'
    if type(value) is not str:
        raise InvalidInput(f"{where} must be {kind}, got {str(value)[:40]!r} ({type(value).__name__})", field=field)
    if len(value) > MAX_KEY_LENGTH:
        raise InvalidInput(f"{where} has {len(value)} characters, at most {MAX_KEY_LENGTH} are taken", field=field)
    return value
