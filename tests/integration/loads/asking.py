"""A way to run `emberline loadtest` on a server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.server_process import ServerProcess

ROOT = Path(__file__).parents[3]


def command(server: ServerProcess, *arguments: str) -> list[str]:
    """Returns the command line of a load test of `tiny`; the server is named by `environment`."""
    metrics = f"http://127.0.0.1:{server.metrics_port}/metrics"
    addresses = ("--model", "tiny", "--grpc", server.grpc, "--metrics", metrics)
    return [sys.executable, "-m", "emberline", "loadtest", *addresses, *arguments]


def environment(server: ServerProcess) -> dict[str, str]:
    """Returns an environment whose EMBERLINE_URL names a server."""
    return {**os.environ, "EMBERLINE_URL": server.url, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def load(server: ServerProcess, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a load test and asserts its exit code."""
    done = subprocess.run(
        command(server, *arguments),
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(server),
        check=False,
    )
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
