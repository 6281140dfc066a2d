"""Starts servers with access files, in this process or in processes of their own, and calls them with tokens."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import yaml

from serving.security.tokens import digest_of
from tests.integration.serving.http_calls import ask, until
from tests.support.server_process import free_ports

SERVICE = "/inference.GRPCInferenceService"

# The token of each entry is its name.
TOKENS: list[dict[str, Any]] = [
    {"name": "caller", "roles": ["predict"]},
    {"name": "viewer", "roles": ["read"]},
    {"name": "operator", "roles": ["admin"]},
    {"name": "narrow-caller", "roles": ["predict"], "models": ["rank*"]},
    {"name": "narrow-viewer", "roles": ["read"], "models": ["ranker"]},
    {"name": "narrow-operator", "roles": ["admin"], "models": ["ranker"]},
    {"name": "elsewhere", "roles": ["predict", "read", "admin"], "models": ["other"]},
    {"name": "gone", "roles": ["predict", "read", "admin"], "expires": "2020-01-01"},
]


def write_access(path: Path, tokens: list[dict[str, Any]] = TOKENS, **rest: Any) -> Path:
    """Writes an access file in one step, as anybody must who changes it while servers run."""
    entries = [{**entry, "sha256": digest_of(entry["name"])} for entry in tokens]
    fresh = path.with_name(f"{path.name}.fresh")
    fresh.write_text(yaml.safe_dump({"tokens": entries, **rest}))
    fresh.chmod(0o600)
    fresh.replace(path)
    return path


def bearer(name: str | None) -> dict[str, str]:
    """Returns the headers of a caller; None is a caller without a token."""
    return {} if name is None else {"Authorization": f"Bearer {name}"}


def call(address: str, method: str, message: Any = b"", token: str | None = None) -> tuple[grpc.StatusCode, str]:
    """Makes one gRPC call; returns its code and text.

    method: the name without the service, or a whole path.
    """
    path = method if method.startswith("/") else f"{SERVICE}/{method}"
    data = message if isinstance(message, bytes) else message.SerializeToString()
    metadata = [(key.lower(), value) for key, value in bearer(token).items()]
    with grpc.insecure_channel(address) as channel:
        try:
            if path.endswith("ModelStreamInfer"):
                list(channel.stream_stream(path)(iter([data]), timeout=30, metadata=metadata))
            else:
                channel.unary_unary(path)(data, timeout=30, metadata=metadata)
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


@dataclass(frozen=True)
class Process:
    """A running `emberline serve`, with its ports and its log."""

    process: subprocess.Popen[bytes]
    port: int
    grpc: str
    metrics_port: int
    log: Path


@contextlib.contextmanager
def serve(repository: Path, folder: Path, *arguments: str) -> Iterator[Process]:
    """Runs a server in processes of its own, once it has reported its ports."""
    folder.mkdir(parents=True, exist_ok=True)
    ports = free_ports(3)
    flags = [
        text
        for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)
        for text in (f"--{name}-port", str(port))
    ]
    command = [sys.executable, "-m", "emberline", "serve", "--model-repository", str(repository)]
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--store", str(folder / "store"), *flags, *arguments], stdout=output, stderr=output
        )
        try:
            until(lambda: "model versions ready" in log.read_text() or process.poll() is not None, 90)
            until(lambda: "Emberline " in log.read_text() or process.poll() is not None, 90)
            assert process.poll() is None, log.read_text()
            yield Process(process, ports[0], f"127.0.0.1:{ports[1]}", ports[2], log)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def status(port: int, method: str, path: str, token: str | None = None, body: Any = None) -> int:
    """Sends one HTTP request and returns its status."""
    return ask(port, method, path, body, bearer(token)).status


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Reads an audit log."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
