"""Filters errors that gRPC's library logs as its own although only a caller has disconnected."""

from __future__ import annotations

import logging

_LOGGER = "grpc._cython.cygrpc"
# The beginning of the library's error text when the operations of a call were started and failed because the call had
# ended. Operations that could not be started, which is a mistake in the program, have another text.
_CALL_ENDED = 'Failed "execute_batch"'


def keep_quiet_about_callers_that_left() -> None:
    """Keeps the library from logging a traceback for an answer that reached no caller.

    The library logs none if it already knows that the caller cancelled or that the deadline passed. That notice and
    the failure of the answer arrive in either order; if the failure comes first, it logs an error with a traceback.
    """
    logging.getLogger(_LOGGER).addFilter(_is_worth_logging)  # adding it again changes nothing


def _is_worth_logging(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not (type(error).__name__ == "ExecuteBatchError" and str(error).startswith(_CALL_ENDED))
