"""Taking the server's ports, so that one in use is an error before anything is loaded."""

from __future__ import annotations

import errno
import socket

from storage.errors import ConfigError

BACKLOG = 2048


def listen(host: str, port: int, field: str) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ConfigError naming the option."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sets TCP_NODELAY only on sockets that say so; without it answers wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(port_message(host, port, field, error), field=field) from None
    return listener


def port_message(host: str, port: int, field: str, error: OSError | None) -> str:
    """What to tell when a port cannot be taken."""
    if error is None or error.errno == errno.EADDRINUSE:
        return f"{field}: port {port} of {host} is in use; stop the other process, or choose another port"
    return f"{field}: cannot listen on {host}:{port}: {error.strerror or error}"
