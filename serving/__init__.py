"""The server: KServe v2 over HTTP and gRPC in front of loaded models. `serve(ServerConfig(...))` runs one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serving.config import ServerConfig

if TYPE_CHECKING:
    from serving.server import Server, serve

__all__ = ["Server", "ServerConfig", "serve"]


def __getattr__(name: str) -> object:
    # torch, gRPC and uvicorn are loaded when a server is made, not when the package is looked at.
    if name in {"Server", "serve"}:
        from serving import server

        return getattr(server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
