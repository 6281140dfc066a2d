"""Encodes errors for other processes: by name and text, never as objects."""

from __future__ import annotations

from typing import Any

from serving.errors import (
    AlreadyExists,
    EngineFailure,
    Forbidden,
    RateLimited,
    Unauthenticated,
    UnknownModel,
    status_of,
)
from serving.protocol.signature import SignatureChanged
from storage import errors

_KINDS: dict[str, type[errors.EmberlineError]] = {
    kind.__name__: kind
    for kind in (
        errors.InvalidInput,
        UnknownModel,
        errors.NotFound,
        errors.Unsupported,
        errors.Unavailable,
        errors.Overloaded,
        errors.DeadlineExceeded,
        errors.Conflict,
        errors.CorruptStoreError,
        SignatureChanged,
        AlreadyExists,
        Unauthenticated,
        Forbidden,
        RateLimited,
    )
}


def to_wire(error: BaseException) -> dict[str, Any]:
    """Encodes the part of an error that the caller may see. The rest is logged here."""
    name = next((name for name in [kind.__name__ for kind in type(error).__mro__] if name in _KINDS), "")
    if name:
        known = error.known if isinstance(error, UnknownModel) else ()
        return {"error": name, "text": str(error), "field": getattr(error, "field", ""), "known": known}
    nearest = errors.Unavailable.__name__ if isinstance(error, errors.StoreError) else ""
    return {"error": nearest, "text": status_of(error)[2], "field": ""}


def from_wire(content: dict[str, Any]) -> errors.EmberlineError:
    """Returns the error that `to_wire` was given, or an EngineFailure that refers to the log."""
    kind = _KINDS.get(content["error"])
    if kind is None:
        return EngineFailure(content["text"])
    if kind is UnknownModel:
        return UnknownModel(content["text"], content["known"])
    if kind is errors.InvalidInput:
        return errors.InvalidInput(content["text"], field=content["field"])
    return kind(content["text"])
