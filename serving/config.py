"""What a server is started with."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from serving.engine.options import ByteSize

Port = Annotated[int, Field(ge=0, le=65535)]


def stores_dir() -> Path:
    """Where stores are kept unless somebody says otherwise."""
    return Path.home() / ".cache" / "emberline" / "stores"


class ServerConfig(BaseModel):
    """Options of a server. Models have theirs in config.pbtxt.

    models: names to serve, all of the repository when empty. store: where rows are kept on SSD, never inside the
    repository. ports: 0 takes a free one. max_body_bytes: of one request; max_inflight_bytes: of all in flight
    over HTTP (over gRPC each message is bounded, and their number).
    strict_readiness: one model that serves nothing makes the whole server not ready, as in Triton.
    frontends: processes that speak HTTP and gRPC before the engine's; 0: the engine does so itself.
    poll_s: seconds between looks into the repository, for file systems that do not tell of changes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model_repository: Path
    models: tuple[str, ...] = ()
    store: Path | None = None
    host: str = "127.0.0.1"
    http_port: Port = 8000
    grpc_port: Port = 8001
    metrics_port: Port = 8002
    max_body_bytes: Annotated[ByteSize, Field(ge=1024, lt=2**31)] = 64 << 20
    max_inflight_bytes: Annotated[ByteSize, Field(ge=1024)] = 512 << 20
    body_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    drain_timeout_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    strict_readiness: bool = True
    frontends: Annotated[int, Field(ge=0, le=256)] = 0
    poll_s: Annotated[float, Field(ge=0.05, le=3600)] = 2.0

    @property
    def store_dir(self) -> Path:
        """The store's folder: as given, or one of its own for this repository under the user's cache."""
        if self.store is not None:
            return self.store
        place = hashlib.sha256(str(self.model_repository.resolve()).encode()).hexdigest()[:12]
        return stores_dir() / f"{self.model_repository.resolve().name}-{place}"
