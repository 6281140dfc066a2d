"""Clients that we did not write: Java's HttpClient, curl with --http2, and grpc-js with a health probe.

    python -m tests.external.foreign_clients

A line a client. Those that are not on this machine are skipped with the reason; the
packages of the probe come from npm. Exit code 0 when none failed, 1 when one did, 2 when all were skipped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.integration.serving.identity_models import write_identity
from tests.support.server_process import ServerProcess

HERE = Path(__file__).parent
NODE_PACKAGES = ("@grpc/grpc-js@1.14.0", "@grpc/proto-loader@0.8.0", "grpc-health-check@2.1.0")
BODY = '{"inputs":[{"name":"in_A","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
CALL_S, INSTALL_S = 120, 300


class SkippedError(Exception):
    """Raised with the reason why a client cannot run here."""


def run(command: Sequence[str | Path], folder: Path | None = None, timeout_s: float = CALL_S) -> str:
    """Runs a program and returns what it prints.

    Raises AssertionError with its output when the program fails, and SkippedError when the program is not installed.
    """
    if shutil.which(str(command[0])) is None:
        raise SkippedError(f"there is no {command[0]}")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{done.returncode}: {(done.stdout + done.stderr).strip()[:400]}"
    return done.stdout


def java(server: ServerProcess, _folder: Path) -> None:
    """Checks HTTP/1.1, and HTTP/2 in the way the client offers it: an Upgrade beside a body."""
    run(["java", HERE / "JavaCalls.java", str(server.http_port)])


def curl(server: ServerProcess, _folder: Path) -> None:
    """Checks --http2 and --http2-prior-knowledge.

    --http2 is sent with a body, twice on one connection; --http2-prior-knowledge must be refused without hanging.
    """
    url = f"{server.url}/v2/models/echo/infer"
    chunked, expecting = ("-H", "Transfer-Encoding: chunked"), ("-H", "Expect: 100-continue")
    for options in (("--http2",), ("--http2", *chunked), ("--http2", *expecting), ("--http1.1",), ("--http1.0",)):
        said = run(["curl", "-sS", "--fail-with-body", *options, "-d", BODY, url, url])
        answers = said.replace("}{", "}\n{").splitlines()
        assert [json.loads(answer)["outputs"][0]["data"] for answer in answers] == [[1.0, 2.0, 3.0, 4.0]] * 2, options
    command = ["curl", "-sS", "--max-time", "10", "--http2-prior-knowledge", url]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=CALL_S, check=False)
    assert refused.returncode not in (0, 28), refused  # Exit code 28: nothing came within ten seconds.


def grpc_js(server: ServerProcess, folder: Path) -> None:
    """Checks grpc.health.v1 with another implementation of gRPC."""
    if not (folder / "node_modules").exists():
        try:
            run(["npm", "install", "--silent", "--no-audit", "--no-fund", *NODE_PACKAGES], folder, INSTALL_S)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise SkippedError(f"its packages could not be installed: {str(error)[:200]}") from None
        shutil.copy(HERE / "grpc_probe.js", folder)
    run(["node", "grpc_probe.js", server.grpc], folder)


CLIENTS: dict[str, Callable[[ServerProcess, Path], None]] = {
    "Java's HttpClient": java,
    "curl": curl,
    "grpc-js": grpc_js,
}


def main() -> int:
    """Parses the command line, serves, calls."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.external.foreign_clients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    words: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_identity(folder / "models", "echo", {"A": ("FP32", [4])}, max_batch=64)
        (folder / "node").mkdir()
        with ServerProcess(folder / "models", folder / "store", folder / "log") as server:
            for client, calls in CLIENTS.items():
                try:
                    calls(server, folder / "node")
                    words.append("passed")
                except SkippedError as error:
                    words.append(f"skipped: {error}")
                except Exception as error:
                    words.append(f"FAILED: {type(error).__name__} {error}")
                print(f"{client:<20} {words[-1]}", flush=True)
    if any(word.startswith("FAILED") for word in words):
        return 1
    return 0 if "passed" in words else 2


if __name__ == "__main__":
    sys.exit(main())
