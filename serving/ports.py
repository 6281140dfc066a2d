"""Takes the server's ports, so that one in use is an error before anything is loaded."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import resource
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from serving.config import ServerConfig
from storage.errors import ConfigError

logger = logging.getLogger("emberline.serving")

BACKLOG = 2048
# Number of files that the models' stores, libraries and the rest have open.
_OTHER_FILES = 2048


@dataclass(frozen=True)
class Ports:
    """The sockets of a server's ports.

    A process that is forked has them too. Connections wait in the sockets that listen while no process accepts any.
    """

    #: Listens.
    http: socket.socket
    #: Is bound, so that no other server gets the port, and listens after `listen_grpc`. A server that cannot take over
    #: a socket binds one of its own to the port instead, with SO_REUSEPORT.
    grpc: socket.socket
    #: Listens.
    metrics: socket.socket

    @property
    def numbers(self) -> tuple[int, int, int]:
        """The ports for HTTP, gRPC and metrics."""
        http, grpc, metrics = (int(each.getsockname()[1]) for each in (self.http, self.grpc, self.metrics))
        return http, grpc, metrics

    def listen_grpc(self) -> socket.socket:
        """Listens on the port for gRPC, and returns its socket."""
        # Its connections have the option too: they do not keep the next server from the port when they are closed.
        self.grpc.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.grpc.listen(BACKLOG)
        return self.grpc

    def close(self) -> None:
        """Closes the sockets of this process."""
        for each in (self.http, self.grpc, self.metrics):
            each.close()


@contextlib.contextmanager
def open_ports(config: ServerConfig) -> Iterator[Ports]:
    """Takes the ports of a server, and closes them at the end. Raises ConfigError naming the option."""
    with contextlib.ExitStack() as stack:
        http = stack.enter_context(listen(config.host, config.http_port, "http_port"))
        metrics = stack.enter_context(listen(config.host, config.metrics_port, "metrics_port"))
        grpc = stack.enter_context(_reserve(config.host, config.grpc_port, "grpc_port"))
        yield Ports(http, grpc, metrics)


def listen(host: str, port: int, field: str) -> socket.socket:
    """Returns a listening socket; port 0 takes a free one. Raises ConfigError naming the option."""
    listener = _tcp_socket(host)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(port_message(host, port, field, error), field=field) from None
    return listener


def _reserve(host: str, port: int, field: str) -> socket.socket:
    """Returns a bound socket whose port further sockets of this user can share. Raises ConfigError."""
    # A socket that shares its port could be bound beside another server's that does so too; this one could not.
    with listen(host, port, field) as probe:
        chosen = int(probe.getsockname()[1])
    reserved = _tcp_socket(host)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((host, chosen))
    except OSError as error:
        reserved.close()
        raise ConfigError(port_message(host, chosen, field, error), field=field) from None
    return reserved


def _tcp_socket(host: str) -> socket.socket:
    # The protocol is named because asyncio sets TCP_NODELAY only on sockets that name it; without it answers wait 40
    # ms.
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)


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
