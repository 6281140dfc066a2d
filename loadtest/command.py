"""Builds the commands that start locust without its web page, for one kind of user."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

KINDS = {"http_binary": "HttpBinaryUser", "http_json": "HttpJsonUser", "grpc": "GrpcUser"}
LOCUSTFILE = Path(__file__).parent / "locustfile.py"


def locust_command(
    kind: str,
    *,
    url: str,
    grpc: str,
    model: str,
    data: Path | str,
    figures: Path,
    seconds: int,
    users: int = 4,
    items: int = 32,
    seed: int = 1,
) -> list[str]:
    """Returns the command of a closed loop. SIGTERM ends it early; either way `figures` is written at its end."""
    return _command(
        kind,
        url,
        users,
        *("--grpc", grpc, "--model", model, "--data", str(data)),
        *("--items", str(items), "--seed", str(seed), "--figures", str(figures)),
        *("--run-time", f"{seconds}s", "--stop-timeout", "5"),
    )


def controlled_command(
    kind: str,
    *,
    url: str,
    grpc: str,
    model: str,
    prepared: Path,
    users: int,
    control: int,
    index: int,
    processes: int,
    tls: Sequence[str] = (),
) -> list[str]:
    """Returns the command of one process that gets over a connection what to send. tls: options for HTTPS."""
    return _command(
        kind,
        url,
        users,
        *("--grpc", grpc, "--model", model, "--prepared", str(prepared), *tls),
        *("--control", str(control), "--index", str(index), "--of", str(processes)),
    )


def _command(kind: str, url: str, users: int, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), KINDS[kind], "--headless", "--only-summary"),
        *("--host", url, "--users", str(users), "--spawn-rate", str(users), "--loglevel", "ERROR", *options),
    ]
