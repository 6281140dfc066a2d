"""Takes the server's ports, so that one in use is an error before anything is loaded."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import resource
import socket

from storage.errors import ConfigError

logger = logging.getLogger("emberline.serving")

BACKLOG = 2048
# Number of files that the models' stores, libraries and the rest have open.
_OTHER_FILES = 2048


def listen(host: str, port: int, field: str) -> socket.socket:
    """Returns a listening socket; port 0 takes a free one. Raises ConfigError naming the option."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sets TCP_NODELAY only on sockets that name it; without it answers wait 40
    # ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(port_message(host, port, field, error), field=field) from None
    return listener


def allow_connections(count: int) -> None:
    """Raises the limit of open files to so many connections a port, so that clients cannot take the files of stores."""
    # One of HTTP takes a second file while the Python path serves it.
    wanted = 4 * count + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, possible), hard))
    if possible < wanted:
        logger.warning(
            "this process may have %d files open, fewer than %d connections on each of 3 ports need; raise its limit "
            "(ulimit -Hn), or lower max_connections",
            possible,
            count,
        )


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach a server that listens at this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def port_message(host: str, port: int, field: str, error: OSError | None) -> str:
    """Returns the message for a port that cannot be taken."""
    if error is None or error.errno == errno.EADDRINUSE:
        return f"{field}: port {port} of {host} is in use; stop the other process, or choose another port"
    return f"{field}: cannot listen on {host}:{port}: {error.strerror or error}"
