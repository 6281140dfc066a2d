"""An HTTP proxy before an object store that breaks what a test tells it to, as networks and stores do."""

from __future__ import annotations

import http.client
import http.server
import os
import socket
import socketserver
import struct
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Literal

import pytest

#: lost: a request is executed, and the connection breaks before its answer. cut: it breaks in the middle of the body.
#: 503: the store is overloaded. 403: it does not allow that. hang: nothing is answered until the fault ends.
Fault = Literal["lost", "cut", "503", "403", "hang"]
_SLOW = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>"
_DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_OWN = {"connection", "transfer-encoding", "content-length", "server", "date"}


class FaultyProxy:
    """Passes requests on to a port of this machine."""

    def __init__(self, port: int) -> None:
        self.store_port = port
        self.fault: Fault | None = None
        self.holds: Callable[[str, str], bool] = lambda method, path: True
        self.healed = threading.Event()
        #: Method and path of the requests that met the fault.
        self.met: list[tuple[str, str]] = []
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self) -> str:
        """The address that clients ask."""
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def failing(self, fault: Fault, holds: Callable[[str, str], bool]) -> Iterator[None]:
        """Breaks requests for the block. holds: called with method and path; True for those that meet the fault."""
        self.met.clear()
        self.healed.clear()
        self.fault, self.holds = fault, holds
        try:
            yield
        finally:
            self.fault = None
            self.healed.set()

    def close(self) -> None:
        """Ends it."""
        self.healed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def proxy_of_store() -> Iterator[FaultyProxy]:
    """Runs a proxy before the object store at AWS_ENDPOINT_URL; skips the test where that is not set."""
    if "AWS_ENDPOINT_URL" not in os.environ:
        pytest.skip("the proxy needs a store at AWS_ENDPOINT_URL")
    with closing(FaultyProxy(urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"]).port or 80)) as proxy:
        yield proxy


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyProxy

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.proxy.fault if self.proxy.holds(self.command, self.path) else None
        if fault is not None:
            self.proxy.met.append((self.command, self.path))
        if fault == "hang":
            self.proxy.healed.wait(120)
            return self._reset()
        if fault == "503":
            return self._answer(503, [], _SLOW)
        if fault == "403":
            return self._answer(403, [], _DENIED)
        status, headers, data = self._passed_on(body)
        if fault == "lost":
            return self._reset()
        if fault != "cut":
            return self._answer(status, headers, data)
        self._begin(status, headers, data)
        self.wfile.write(data[: len(data) // 2])
        return self._reset()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - named by http.server

    def _passed_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.store_port, timeout=30)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _begin(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in _OWN:
                self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        try:
            self._begin(status, headers, data)
            self.wfile.write(data)
        except ConnectionError:
            self.close_connection = True

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RD)
        self.connection.close()
        self.close_connection = True
