"""What gRPC's library logs as its own error although only a caller has gone away."""

from __future__ import annotations

import logging

_LOGGER = "grpc._cython.cygrpc"
# How the text of the library's error begins when the operations of a call were begun and did not succeed, because the
# call had ended. Operations that could not be begun, which is a mistake in the program, have another text.
_CALL_ENDED = 'Failed "execute_batch"'


def keep_quiet_about_callers_that_left() -> None:
    """Keeps the library from logging a traceback for an answer that reached nobody.

    The library does so itself where it has heard already that the caller cancelled or that its deadline passed. The
    answer's failure and that word arrive in either order, and in the other one it logs an error with a traceback.
    """
    logging.getLogger(_LOGGER).addFilter(_is_worth_logging)  # adding it again changes nothing


def _is_worth_logging(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not (type(error).__name__ == "ExecuteBatchError" and str(error).startswith(_CALL_ENDED))
