"""Serves the gRPC port by native code: plain ModelInfer calls never reach Python before they are a batch.

Every other call goes, as it came, to the gRPC server of the Python path, which listens on a local socket that only this
process's user can open; its responses go back as they come.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Iterator

from serving._front import HAS_GRPC, GrpcServer
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

    def __init__(self, config: ServerConfig, routes: NativeRoutes, listener: socket.socket, upstream: str) -> None:
        """upstream: path of the socket that the Python path's server listens on."""
        options = server_options(config, keep_alive_s=IDLE_S, linger_s=_LINGER_S, status=_code)
        super().__init__(routes, lambda wake: GrpcServer(options, routes.native, listener.fileno(), wake, upstream))


@contextlib.contextmanager
def upstream_path() -> Iterator[str]:
    """Returns a path for the Python path's server to listen on, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="emberline-", ignore_cleanup_errors=True) as folder:
        yield f"{folder}/grpc"


def _code(error: EmberlineError) -> str:
    return str(status_of(error)[1].value[0])
