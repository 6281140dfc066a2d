"""Answers over TLS to clients that read late, never, or beside others that want their place."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from serving.http import limits as limits_module
from serving.http import server as server_module
from serving.security.tls import ServerTls
from tests.integration.serving.certificates import Certificate, make_ca, make_certificate
from tests.unit.serving.http.test_protocol import Served, serving

SIZE = 24 << 20


class World:
    """A certificate, and the client context that trusts it."""

    def __init__(self, folder: Path) -> None:
        self.ca: Certificate = make_ca(folder)
        self.made = make_certificate(self.ca, folder, "localhost")
        self.client = ssl.create_default_context(cafile=self.ca.certificate)

    def connect(self, port: int, first: bytes = b"") -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port), timeout=20)
        end = self.client.wrap_socket(plain, server_hostname="localhost")
        end.sendall(first)
        return end


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, world: World) -> Callable[..., None]:
    def run(test: Callable[[Served], Awaitable[None]], **options: Any) -> None:
        async def bounded() -> None:
            tls = ServerTls(world.made.certificate, world.made.key)
            async with asyncio.timeout(30), serving(tls, **options) as served:
                served.app.large = SIZE
                await test(served)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(bounded())

    return run


def content_of(end: ssl.SSLSocket, text: bytes = b"") -> int:
    """Returns the number of bytes of the answer's content that come before the connection ends.

    text: what was read before.
    """
    while b"\r\n\r\n" not in text:
        text += end.recv(4096)
    head, _, content = text.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    got = len(content)
    while got < SIZE and (more := len(end.recv(1 << 20))):
        got += more
    return got


@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"])
def test_one_that_reads_late_gets_all_of_its_answer(
    world: World, run: Callable[..., None], header: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served) -> None:
        late = threading.Event()

        def ask() -> int:
            with world.connect(served.port, b"GET /large HTTP/1.1\r\nHost: h\r\n" + header + b"\r\n") as end:
                late.wait(1.5)  # longer than the handshake's bound
                return content_of(end)

        assert await asyncio.to_thread(ask) == SIZE

    monkeypatch.setattr(server_module, "HANDSHAKE_S", 0.5)
    run(test)


def test_a_connection_in_the_middle_of_an_answer_does_not_give_way(world: World, run: Callable[..., None]) -> None:
    async def test(served: Served) -> None:
        def ask() -> tuple[int, bytes]:
            with world.connect(served.port, b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n") as end:
                first = end.recv(1)
                with world.connect(served.port) as other:
                    turned_away = other.recv(4096)
                return content_of(end, first), turned_away

        got, turned_away = await asyncio.to_thread(ask)
        assert (got, turned_away[:12]) == (SIZE, b"HTTP/1.1 503")

    run(test, max_connections=1)


@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"])
def test_one_that_does_not_read_is_ended(
    world: World, run: Callable[..., None], header: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served) -> None:
        end = await asyncio.to_thread(
            world.connect, served.port, b"GET /large HTTP/1.1\r\nHost: h\r\n" + header + b"\r\n"
        )
        with end:
            while not served.app.headers:
                await asyncio.sleep(0.005)
            while served.limits._connections:
                await asyncio.sleep(0.005)

    monkeypatch.setattr(limits_module, "_TICK_S", 0.01)
    run(test, body_timeout_s=0.3)
