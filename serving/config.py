"""Defines the options of a server."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from storage.byte_sizes import ByteSize
from storage.objects import is_url, url_of
from storage.objects.replica_id import REPLICA_PATTERN
from storage.paths import local_path

Port = Annotated[int, Field(ge=0, le=65535)]


def _local(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str | Path):
        local_path(value, info.field_name or "path")
    return value


_SEGMENT_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")


def _segment_prefix(value: str) -> str:
    if not _SEGMENT_PREFIX.fullmatch(value):
        raise ValueError(
            "expected what names of segments in /dev/shm begin with, such as 'ranker-': 1 to 200 letters, digits, "
            "'_', '-' and '.', no '/'"
        )
    return value


def _host_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", value):
        raise ValueError("expected a name such as console.example.com, without a port")
    return value.lower()


_REPLICA_URL = re.compile(r"https?://[^/\s@?#]+/?")

# Without credentials: OpenTelemetry reads headers from the environment.
_COLLECTOR_URL = re.compile(r"(?:https?://[^/\s@?#]+(?:/[^\s?#]*)?|grpcs?://[^/\s@?#]+)")

LocalPath = Annotated[Path, BeforeValidator(_local)]
SegmentPrefix = Annotated[str, AfterValidator(_segment_prefix)]
HostName = Annotated[str, AfterValidator(_host_name)]

# Connections that one address may always have, where no other limit is configured.
_FEW_CONNECTIONS = 64


def copy_dir(url: str) -> Path:
    """Returns the folder that a repository in an object store is copied to where no other is configured."""
    place = hashlib.sha256(url.encode()).hexdigest()[:12]
    return Path.home() / ".cache" / "emberline" / "repositories" / f"{url.rpartition('/')[2]}-{place}"


def stores_dir() -> Path:
    """Returns the folder of stores where no other is configured."""
    return Path.home() / ".cache" / "emberline" / "stores"


class ServerConfig(BaseModel):
    """Options of a server. Models have their own options in config.pbtxt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: The folder that models are read from. With repository_url, a copy of what is there.
    model_repository: LocalPath
    #: The repository in an object store, such as s3://bucket/models. A URL as model_repository becomes this one.
    repository_url: str | None = None
    #: Where it is copied to; None: a folder under the user's cache.
    mirror_dir: LocalPath | None = None
    #: Bytes a second that may come from there; None: no bound.
    mirror_bytes_per_s: Annotated[ByteSize, Field(ge=1 << 16)] | None = None
    #: True if the replicas of the repository, which lies in an object store, serve one snapshot and switch together.
    fleet: bool = False
    #: The name of this replica in its fleet; None: the host's name and the HTTP port.
    replica_id: str | None = None
    #: Where the other replicas ask whether it is ready, such as http://10.0.0.7:8000; None: this machine's address.
    replica_url: str | None = None
    #: Replicas that answer requests and cannot take a snapshot, beyond which the others wait for them.
    max_unavailable: Annotated[int, Field(ge=0, le=100_000)] = 1
    #: Names of the models to serve; all of the repository when empty.
    models: tuple[str, ...] = ()
    #: Folder of rows on SSD, never inside the repository.
    store: LocalPath | None = None
    #: Address to listen on; 0.0.0.0 opens the server to the network.
    host: str = "127.0.0.1"
    #: Port for HTTP; 0 takes a free one, here and below.
    http_port: Port = 8000
    #: Port for gRPC.
    grpc_port: Port = 8001
    #: Port of the page of metrics.
    metrics_port: Port = 8002
    #: Largest body of one request.
    max_body_bytes: Annotated[ByteSize, Field(ge=1024, lt=2**31)] = 64 << 20
    #: Bytes of all requests in flight over HTTP. Over gRPC each message is bounded, and the number of calls; a stream
    #: counts as one call, with 64 requests under way.
    max_inflight_bytes: Annotated[ByteSize, Field(ge=1024)] = 512 << 20
    #: Time for the body of a request to come.
    body_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    #: How long a server that is asked to stop goes on answering while it reports that it is not ready, so that load
    #: balancers leave it out first. None: 5 s where somebody keeps asking for readiness, else no time.
    drain_delay_s: Annotated[float, Field(ge=0, le=3600)] | None = None
    #: Time for requests in flight when the server stops.
    drain_timeout_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    #: True if one model that serves nothing makes the whole server not ready, as in Triton.
    strict_readiness: bool = True
    #: Beginnings of the names of segments that clients may pass tensors in; none: no shared memory.
    shared_memory: tuple[SegmentPrefix, ...] = ()
    #: Seconds between looks into the repository, for file systems that do not report changes.
    poll_s: Annotated[float, Field(ge=0.05, le=3600)] = 2.0
    #: Connections of each port. Beyond it idle ones are closed; where none is idle a new one is turned away.
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 4096
    #: Connections over HTTP that one address may have of these, likewise; None: half of them, at least 64.
    max_connections_per_address: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    #: The access rules (docs/security.md). Without them everybody may predict and read, and control needs the server's
    #: own token.
    access_file: LocalPath | None = None
    #: True if everybody may control, as in Triton.
    open_admin: bool = False
    #: Names of this server by which browsers may call the console, and control it, without a token.
    allowed_hosts: tuple[HostName, ...] = ()
    #: The server's certificate (PEM); with it, all ports speak TLS.
    tls_certificate: LocalPath | None = None
    #: The private key, where it is not in the file of tls_certificate.
    tls_key: LocalPath | None = None
    #: The authority whose certificates clients have to show.
    tls_client_ca: LocalPath | None = None
    #: Requests of one client, a principal of the access file or an address.
    max_requests_per_second: Annotated[float, Field(gt=0, le=1e9)] | None = None
    #: File that every call that controls is written to; such calls are logged in any case.
    audit_log: LocalPath | None = None
    #: How lines of the log and of the access log are written.
    log_format: Literal["console", "json"] = "console"
    #: File for a line a request, - for standard output; None: no access log.
    access_log: LocalPath | None = None
    #: A request that takes longer is logged with the times of its stages; None: none is.
    slow_request_ms: Annotated[float, Field(gt=0, le=3_600_000)] | None = None
    #: Where traces are sent by OTLP: http://HOST:4318 or grpc://HOST:4317; None: no request is traced.
    trace_otlp: str | None = None
    #: Share of the requests that are traced; a request with a traceparent is traced if that says so.
    trace_sampling: Annotated[float, Field(ge=0, le=1)] = 0.01
    #: Folder for the requests and labels that models log by their options; None: none may.
    feature_log: LocalPath | None = None
    #: File with the key of the digests that stand for personal values there.
    feature_log_key: LocalPath | None = None
    #: Where options come from, by name: a flag or an environment variable. It is reported, and changes nothing.
    origins: dict[str, str] = Field(default={}, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _with_copy(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not is_url(values.get("model_repository", "")):
            return values
        url = url_of(values["model_repository"])
        return {**values, "repository_url": url, "model_repository": values.get("mirror_dir") or copy_dir(url)}

    @field_validator("fleet")
    @classmethod
    def _fleet_of_a_store(cls, value: bool, info: ValidationInfo) -> bool:
        if value and "repository_url" in info.data and info.data["repository_url"] is None:
            raise ValueError(
                "replicas agree through an object store; give one as the repository, such as s3://bucket/models"
            )
        return value

    @field_validator("replica_id", "replica_url")
    @classmethod
    def _of_a_fleet(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("fleet") is False:
            raise ValueError("it goes with fleet")
        if info.field_name == "replica_id" and value is not None and not re.fullmatch(REPLICA_PATTERN, value):
            raise ValueError("expected 1 to 128 letters, digits, '_', '-' and '.', a letter or digit first")
        if info.field_name == "replica_url" and value is not None and not _REPLICA_URL.fullmatch(value):
            raise ValueError(
                "expected http://HOST:PORT or https://HOST:PORT without a path, such as http://10.0.0.7:8000"
            )
        return value.rstrip("/") if value is not None else None

    @field_validator("open_admin")
    @classmethod
    def _one_rule_for_control(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("access_file") is not None:
            raise ValueError("with an access file, its role 'admin' says who can control; give one of the two")
        return value

    @field_validator("tls_key", "tls_client_ca")
    @classmethod
    def _with_certificate(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and info.data.get("tls_certificate") is None:
            raise ValueError("it goes with tls_certificate")
        return value

    @field_validator("trace_otlp")
    @classmethod
    def _collector(cls, value: str | None) -> str | None:
        if value is not None and not _COLLECTOR_URL.fullmatch(value):
            raise ValueError(
                "expected http://HOST:4318 (OTLP over HTTP) or grpc://HOST:4317 (over gRPC), https:// or grpcs:// with "
                "TLS"
            )
        return value

    @property
    def connections_per_address(self) -> int:
        """The limit for one address; see max_connections_per_address."""
        if self.max_connections_per_address is not None:
            return self.max_connections_per_address
        return max(_FEW_CONNECTIONS, self.max_connections // 2)

    @property
    def store_dir(self) -> Path:
        """The store's folder: the given one, or a folder for this repository under the user's cache."""
        if self.store is not None:
            return self.store
        place = hashlib.sha256(str(self.model_repository.resolve()).encode()).hexdigest()[:12]
        return stores_dir() / f"{self.model_repository.resolve().name}-{place}"
