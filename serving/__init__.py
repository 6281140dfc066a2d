"""Serves loaded models by KServe v2 over HTTP and gRPC. `serve(ServerConfig(...))` runs a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.lazy import lazy_names

if TYPE_CHECKING:
    from serving.config import ServerConfig
    from serving.foreground import serve
    from serving.server import Server

__all__ = ["Server", "ServerConfig", "serve"]


# torch, gRPC and uvicorn are loaded when a server is made, not when the package is imported.
_HOMES = {"Server": "serving.server", "ServerConfig": "serving.config", "serve": "serving.foreground"}

__getattr__ = lazy_names(__name__, _HOMES)
