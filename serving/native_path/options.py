"""The limits of a native server, and the texts of its refusals: those of the Python path."""

from __future__ import annotations

import resource
from collections.abc import Callable

from serving._front import Callers, Observer, ServerOptions
from serving.config import ServerConfig
from serving.engine.requests import request_expired
from storage.errors import EmberlineError, InvalidInput, Overloaded

# Files that are left to stores, and to connections that are refused as too many; a quarter of all files where
# the process may open few.
_SPARE_FILES = 256


def spare_descriptors() -> int:
    """Returns the descriptor from which on few files are left: the system assigns the lowest free one."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**31 if files == resource.RLIM_INFINITY else files - min(_SPARE_FILES, files // 4)


def too_many_of_address(bound: int) -> Overloaded:
    """Returns the error for an address that has `bound` connections."""
    return Overloaded(f"this address has {bound} connections already, all at work; try later")


def too_many_connections() -> Overloaded:
    """Returns the error for a connection that is one too many for the port."""
    return Overloaded("too many connections are open; try later")


def too_many_bytes(bound: int) -> Overloaded:
    """Returns the error for a body that is read while others have `bound` bytes."""
    return Overloaded(f"requests of {bound} bytes are being read already; try later")


def late_body(timeout_s: float) -> InvalidInput:
    """Returns the error for a request that did not arrive in time."""
    return InvalidInput(f"the body did not arrive within {timeout_s:g} s", field="body")


def server_options(
    config: ServerConfig,
    observer: Observer,
    callers: Callers | None,
    *,
    keep_alive_s: float,
    linger_s: float,
    status: Callable[[EmberlineError], str],
) -> ServerOptions:
    """Returns the options of a native server.

    observer: takes note of requests. callers: those whose requests are answered; None for everybody's.
    keep_alive_s: how long a connection may be idle. linger_s: how long a client may go on sending on one that is about
    to end. status: returns what the protocol sends for an error beside its text.
    """
    options = ServerOptions()
    options.observer = observer
    options.callers = callers
    options.max_body_bytes = config.max_body_bytes
    options.max_inflight_bytes = config.max_inflight_bytes
    options.max_connections = config.max_connections
    options.connections_per_address = config.connections_per_address
    options.last_descriptor = spare_descriptors()
    options.body_timeout_ns = int(config.body_timeout_s * 1e9)
    options.keep_alive_ns = int(keep_alive_s * 1e9)
    options.linger_ns = int(linger_s * 1e9)
    late, expired = late_body(config.body_timeout_s), request_expired()
    options.overloaded_status = status(Overloaded(""))
    options.late_status, options.late = status(late), str(late)
    options.expired_status, options.expired = status(expired), str(expired)
    options.too_many_bytes = str(too_many_bytes(config.max_inflight_bytes))
    options.too_many_connections = str(too_many_connections())
    options.too_many_of_address = str(too_many_of_address(config.connections_per_address))
    return options
