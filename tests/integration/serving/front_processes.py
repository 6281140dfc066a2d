"""Runs a server whose front ends are processes of their own, with what tests need to query and disturb it."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support.server_process import ServerProcess

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Reply:
    """An HTTP answer."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content) if self.content else None


def _reply(answer: http.client.HTTPResponse) -> Reply:
    """Returns the headers without the date, in which two servers may differ."""
    headers = {name.lower(): value for name, value in answer.getheaders() if name.lower() != "date"}
    return Reply(answer.status, headers, answer.read())


def ask(port: int, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
    """Sends one request on a connection of its own.

    body: bytes, or a value that is sent as JSON.
    """
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, data, dict(headers or {}))
        answer = connection.getresponse()
        return _reply(answer)
    finally:
        connection.close()


def until(holds: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class HeldRequest:
    """A request that a front end has read, on a connection of its own; `answer` waits for the outcome."""

    def __init__(self, port: int, path: str, body: bytes) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        # The front end answers the request before it alone; after that answer, it has read the rest.
        before = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
        request = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        self._socket.sendall(before + request)
        assert self._read().status == 200

    @property
    def port(self) -> int:
        """Local port of the connection."""
        return int(self._socket.getsockname()[1])

    def answer(self) -> Reply | None:
        """Returns the answer; None when the connection ended without one."""
        try:
            return self._read()
        except (http.client.BadStatusLine, ConnectionError):
            return None
        finally:
            self._socket.close()

    def _read(self) -> Reply:
        answer = http.client.HTTPResponse(self._socket)
        answer.begin()
        return _reply(answer)


class Frontends:
    """Runs a server with front ends."""

    def __init__(self, repository: Path, folder: Path, *, frontends: int = 2) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "server.log"
        self.count = frontends
        self.process = ServerProcess(repository, folder / "store", self.log, frontends=frontends, open_admin=True)
        self.port, self.grpc = self.process.http_port, self.process.grpc
        self.supervisor = psutil.Process(self.process.process.pid)

    def __enter__(self) -> Frontends:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.close()

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        return ask(self.port, method, path, body, headers)

    def is_ready(self) -> bool:
        return self.ask("GET", "/v2/health/ready").status == 200

    def processes(self) -> dict[int, str]:
        """Returns the roles of the live processes, by pid."""
        found = {}
        for child in self.supervisor.children():
            try:
                orders = [each for each in child.cmdline() if each.startswith("{")]
                if orders and child.status() != psutil.STATUS_ZOMBIE:
                    found[child.pid] = str(json.loads(orders[0])["role"])
            except psutil.NoSuchProcess:
                continue
        return found

    def engine(self) -> psutil.Process:
        (pid,) = [pid for pid, role in self.processes().items() if role == "engine"]
        return psutil.Process(pid)

    def fronts(self) -> list[int]:
        return sorted(pid for pid, role in self.processes().items() if role == "frontend")

    def stop_engine(self) -> psutil.Process:
        """Suspends the engine; requests to it wait."""
        engine = self.engine()
        engine.send_signal(signal.SIGSTOP)
        until(lambda: engine.status() == psutil.STATUS_STOPPED)
        return engine

    def holder(self, request: HeldRequest) -> int:
        """Returns the pid of the front end that holds a connection."""
        for pid in self.fronts():
            for each in psutil.Process(pid).net_connections("tcp"):
                if each.raddr and each.raddr.port == request.port:
                    return pid
        raise AssertionError("nobody has the connection")
