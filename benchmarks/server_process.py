"""A real server in a process of its own, on free ports of the loopback interface, for the time of a `with` block."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

START_SECONDS_AT_MOST = 300


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """Starts `emberline serve` over a repository and waits until it is ready; ends it by its own id."""

    def __init__(self, repository: Path, store: Path, *options: str) -> None:
        self.http_port, self.grpc_port, self.metrics_port = free_port(), free_port(), free_port()
        self._command = [
            *(sys.executable, "-m", "emberline", "serve"),
            *("--model-repository", str(repository), "--store", str(store), "--host", "127.0.0.1"),
            *("--http-port", str(self.http_port), "--grpc-port", str(self.grpc_port)),
            *("--metrics-port", str(self.metrics_port), *options),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def get(self, path: str, body: bytes | None = None) -> Any:
        address = f"http://127.0.0.1:{self.http_port}{path}"
        with urllib.request.urlopen(address, body, timeout=10) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def __enter__(self) -> ServerProcess:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS_AT_MOST
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(
                    f"the server ended with {self._process.returncode} while starting: {' '.join(self._command)}"
                )
            try:
                self.get("/v2/health/ready")
            except urllib.error.HTTPError:
                self._refuse_failed_models()
                time.sleep(0.1)
            except OSError:
                time.sleep(0.1)
            else:
                return self
        self.__exit__(None, None, None)
        raise RuntimeError(f"the server was not ready within {START_SECONDS_AT_MOST} s")

    def _refuse_failed_models(self) -> None:
        reasons = [entry["reason"] for entry in self.get("/v2/repository/index", b"") if entry.get("reason")]
        if reasons:
            self.__exit__(None, None, None)
            raise RuntimeError(f"the server refuses the model: {reasons[0]}")

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
