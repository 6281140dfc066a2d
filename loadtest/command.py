"""Builds the command that starts locust without its web page, for one kind of user."""

from __future__ import annotations

import sys
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
    """Returns the command line. SIGTERM ends the run early; either way `figures` is written at its end."""
    return [
        *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), KINDS[kind], "--headless", "--only-summary"),
        *("--host", url, "--grpc", grpc, "--model", model, "--data", str(data)),
        *("--items", str(items), "--seed", str(seed), "--figures", str(figures)),
        *("--users", str(users), "--spawn-rate", str(users)),
        *("--run-time", f"{seconds}s", "--stop-timeout", "5", "--loglevel", "ERROR"),
    ]
