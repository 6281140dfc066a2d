"""Maps the exception tree of `storage.errors` to HTTP status and gRPC code: the only place that does so."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable, Iterable

import grpc

from storage import errors

logger = logging.getLogger("emberline.serving")

# Number of names of models that an error keeps, and that it shows.
_MOST_KNOWN, _MOST_SHOWN = 200, 20


class BodyTooLarge(errors.InvalidInput):
    """A request's body is over the configured limit: HTTP 413."""


class UnknownModel(errors.NotFound):
    """There is no model of that name. known: the existing names, which only `told_to` shows."""

    def __init__(self, message: str, known: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.known = tuple(known)

    @classmethod
    def of(cls, name: str, known: Iterable[str]) -> UnknownModel:
        """Makes the error in Triton's words."""
        return cls(f"Request for unknown model: {name[:200]!r} is not found", itertools.islice(known, _MOST_KNOWN))

    def told_to(self, may_see: Callable[[str], bool]) -> errors.NotFound:
        """Returns the error for a caller, with the names that it may see."""
        names = sorted(filter(may_see, self.known))
        hint = f"; there are {', '.join(map(repr, names[:_MOST_SHOWN]))}" if names else ""
        return errors.NotFound(f"{self}{hint}{', ...' if names[_MOST_SHOWN:] else ''}")


class AlreadyExists(errors.EmberlineError):
    """Something of that name is there already: HTTP 400, as in Triton."""


class Unauthenticated(errors.EmberlineError):
    """The caller is unknown, and has to be known: HTTP 401."""


class Forbidden(errors.EmberlineError):
    """The caller is known, and is not allowed to ask for this: HTTP 403."""


class RateLimited(errors.Overloaded):
    """A client sends requests more often than it may: HTTP 429.

    retry_after_s: whole seconds until it may send the next.
    """

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


# The first class that fits wins, so a subclass stands before its parent.
_CODES: tuple[tuple[type[errors.EmberlineError], int, grpc.StatusCode], ...] = (
    (errors.InvalidInput, 400, grpc.StatusCode.INVALID_ARGUMENT),
    (AlreadyExists, 400, grpc.StatusCode.ALREADY_EXISTS),
    (errors.NotFound, 404, grpc.StatusCode.NOT_FOUND),
    (errors.Unsupported, 501, grpc.StatusCode.UNIMPLEMENTED),
    (Unauthenticated, 401, grpc.StatusCode.UNAUTHENTICATED),
    (Forbidden, 403, grpc.StatusCode.PERMISSION_DENIED),
    (RateLimited, 429, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.Overloaded, 503, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.Unavailable, 503, grpc.StatusCode.UNAVAILABLE),
    (errors.CorruptStoreError, 503, grpc.StatusCode.UNAVAILABLE),
    (errors.DeadlineExceeded, 504, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.Conflict, 409, grpc.StatusCode.FAILED_PRECONDITION),
)


def status_of(error: BaseException) -> tuple[int, grpc.StatusCode, str]:
    """Returns HTTP status, gRPC code and text for the caller.

    What is not the caller's business (a bug, a failing disk) is logged; the caller gets a reference to the log. A
    failing disk is 503: it says nothing about the request, and another replica, or the next attempt, may answer it.
    """
    # What is no Unicode is replaced: a text that could not be sent would be no response at all.
    text = str(error).encode("utf-8", "replace").decode()
    if isinstance(error, BodyTooLarge):
        return 413, grpc.StatusCode.INVALID_ARGUMENT, text
    for kind, http_status, grpc_code in _CODES:
        if isinstance(error, kind):
            return http_status, grpc_code, text
    reference = secrets.token_hex(4)
    logger.error("internal error %s", reference, exc_info=error)
    if isinstance(error, errors.StoreError):
        text = f"a store failed, error {reference}; try again, the server's log has the details"
        return 503, grpc.StatusCode.UNAVAILABLE, text
    return 500, grpc.StatusCode.INTERNAL, f"internal error {reference}; the server's log has the details"
