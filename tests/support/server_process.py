"""Runs a server in a process of its own, as a user starts it: `emberline serve`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.errors import Unavailable

START_TIMEOUT_S = 90.0


class ServerProcess:
    """A server on free ports, ready when the constructor returns. `close` or the end of `with` stops it."""

    def __init__(
        self,
        repository: Path | str,
        store: Path | None,
        log: Path,
        *,
        open_admin: bool = False,
        arguments: Sequence[str] = (),
        ca: Path | None = None,
        ports: tuple[int, int, int] | None = None,
        environment: Mapping[str, str] | None = None,
        new_session: bool = False,
    ) -> None:
        """Starts the server.

        store: None for the server's default. open_admin: everybody is allowed to load, unload and roll back. arguments:
        more of `emberline serve`. ca: the certificate by which clients verify it, when the arguments enable TLS.
        ports: for HTTP, gRPC and metrics; None for free ones. environment: what it has beside that of this process.
        new_session: as a service runs it, without a terminal.
        """
        self.http_port, self.grpc_port, self.metrics_port = ports or free_ports(3)
        self.log = log
        command = [
            *(sys.executable, "-m", "emberline", "serve", "--model-repository", str(repository)),
            *([] if store is None else ["--store", str(store)]),
            *("--http-port", str(self.http_port), "--grpc-port", str(self.grpc_port)),
            *("--metrics-port", str(self.metrics_port)),
            *(["--open-admin"] if open_admin else []),
            *arguments,
        ]
        self._tls = None if ca is None else ssl.create_default_context(cafile=ca)
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=new_session,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def serving_pid(self) -> int:
        """The process that serves; that of `process` only starts it again when it crashes."""
        pid = self.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    @property
    def url(self) -> str:
        """The HTTP address."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.http_port}"

    @property
    def grpc(self) -> str:
        """The gRPC address."""
        return f"127.0.0.1:{self.grpc_port}"

    def metrics(self) -> dict[str, float]:
        """Returns every sample of the metrics page by its name with labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def control(self, model: str, call: str, content: Mapping[str, Any] | None = None) -> Any:
        """Makes a control call about a model, or looks where there is no content; returns the answer."""
        data = None if content is None else json.dumps(content).encode()
        url = f"{self.url}/v2/repository/models/{model}/{call}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60, context=self._tls) as answer:
            return json.load(answer)

    def kill(self) -> None:
        """Kills the server and its supervisor, as if the machine had stopped."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Drains and stops the server."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Unavailable(f"the server ended with {self.process.returncode}; its log: {self._last_words()}")
            try:
                urllib.request.urlopen(f"{self.url}/v2/health/ready", timeout=5, context=self._tls).close()
                return
            except OSError:  # not listening yet, or listening and still loading
                pass
            time.sleep(0.1)
        raise Unavailable(f"the server was not ready after {START_TIMEOUT_S:g} s; its log: {self._last_words()}")

    def _last_words(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-5:])


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for entry in sockets:
            entry.bind(("127.0.0.1", 0))
        return [int(entry.getsockname()[1]) for entry in sockets]
