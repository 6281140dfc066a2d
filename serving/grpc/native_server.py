"""Serves the gRPC port by native code: plain ModelInfer calls never reach Python before they are a batch.

Every other call goes, as it came, to the gRPC server of the Python path, which listens on a local socket; its
responses go back as they come.
"""

from __future__ import annotations

import secrets
import socket

from serving._front import HAS_GRPC, Callers, GrpcServer, Observer
from serving.config import ServerConfig
from serving.errors import status_of
from serving.native_path.options import server_options
from serving.native_path.routes import NativeRoutes, NativeServer
from storage.errors import EmberlineError

#: Whether it can be used: native code was built with nghttp2.
HAS_NATIVE_GRPC = HAS_GRPC
#: A connection without a call ends after so long, and its client opens another one for the next call.
IDLE_S = 900.0
_LINGER_S = 2.0


class NativeGrpcServer(NativeServer[GrpcServer]):
    """Accepts the connections of a port. For one event loop."""

    def __init__(
        self,
        config: ServerConfig,
        observer: Observer,
        callers: Callers | None,
        routes: NativeRoutes,
        listener: socket.socket,
        upstream: Upstream,
    ) -> None:
        """observer: takes note of requests that are answered here. callers: see server_options.

        upstream: where the Python path's server listens.
        """
        options = server_options(config, observer, callers, keep_alive_s=IDLE_S, linger_s=_LINGER_S, status=_code)
        super().__init__(
            routes,
            lambda wake: GrpcServer(options, routes.native, listener.fileno(), wake, upstream.path, upstream.secret),
        )


class Upstream:
    """The local socket of the Python path's server, and the secret by which that knows calls that were passed on.

    The socket is one of Linux's abstract namespace, as that of `serving.local_health`: it needs no writable folder and
    ends with its process. Others on this machine may open it, as they may open the port; what the native server says of
    a caller is believed because of the secret.
    """

    def __init__(self) -> None:
        self._name = f"emberline-grpc-{secrets.token_hex(16)}"
        self.secret = secrets.token_hex(16)

    @property
    def address(self) -> str:
        """Returns the address for gRPC's server."""
        return f"unix-abstract:{self._name}"

    @property
    def path(self) -> str:
        """Returns the address for sockets."""
        return f"\0{self._name}"


def _code(error: EmberlineError) -> str:
    return str(status_of(error)[1].value[0])
