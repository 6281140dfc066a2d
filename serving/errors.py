"""The exception tree of `storage.errors`, mapped to HTTP status and gRPC code: the only place that does it."""

from __future__ import annotations

import logging
import secrets

import grpc

from storage import errors

logger = logging.getLogger("emberline.serving")

# The first class that fits wins, so a subclass stands before its parent.
_CODES: tuple[tuple[type[errors.EmberlineError], int, grpc.StatusCode], ...] = (
    (errors.InvalidInput, 400, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.NotFound, 404, grpc.StatusCode.NOT_FOUND),
    (errors.Unsupported, 501, grpc.StatusCode.UNIMPLEMENTED),
    (errors.Overloaded, 503, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.Unavailable, 503, grpc.StatusCode.UNAVAILABLE),
    (errors.DeadlineExceeded, 504, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.Conflict, 409, grpc.StatusCode.FAILED_PRECONDITION),
)


class BodyTooLarge(errors.InvalidInput):
    """A request's body is over the configured limit: HTTP 413."""


class EngineFailure(errors.EmberlineError):
    """The engine, in another process, met an internal error and has logged it: HTTP 500."""


def status_of(error: BaseException) -> tuple[int, grpc.StatusCode, str]:
    """HTTP status, gRPC code and text for the caller.

    What is not the caller's business (a bug, a failing disk) is logged; the caller gets a reference to the log.
    """
    if isinstance(error, BodyTooLarge):
        return 413, grpc.StatusCode.INVALID_ARGUMENT, str(error)
    if isinstance(error, EngineFailure):
        return 500, grpc.StatusCode.INTERNAL, str(error)
    for kind, http_status, grpc_code in _CODES:
        if isinstance(error, kind):
            return http_status, grpc_code, str(error)
    reference = secrets.token_hex(4)
    logger.error("internal error %s", reference, exc_info=error)
    return 500, grpc.StatusCode.INTERNAL, f"internal error {reference}; the server's log has the details"
