"""Tests HTTP with clients that are slow, early, hostile or gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from serving.config import ServerConfig
from serving.http import limits as limits_module
from serving.http import protocol as protocol_module
from serving.http.limits import HttpLimits
from serving.http.messages import HttpRequest, HttpResponse
from serving.http.server import http_server
from serving.ports import listen
from serving.security.tls import ServerTls
from storage.errors import NotFound


class App:
    """Answers with what it was sent; /slow waits until `go`, /none is refused before its body is read."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Event()
        self.cancelled = 0
        self.large = 16_000_000
        self.headers: list[Mapping[bytes, bytes]] = []

    def admit(self, request: HttpRequest) -> None:
        if request.path == "/none":
            raise NotFound("there is none")

    def answer_at_once(self, request: HttpRequest) -> HttpResponse | None:
        return HttpResponse(200, b"now") if request.path == "/now" else None

    def ended(self, request: HttpRequest, response: HttpResponse, *, is_sent: bool) -> None:
        pass

    async def answer(self, request: HttpRequest) -> HttpResponse:
        self.headers.append(request.headers)
        if request.path == "/slow":
            self.begun.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if request.path == "/broken":
            raise RuntimeError("a fault")
        if request.path == "/large":
            return HttpResponse(200, b"x" * self.large)
        return HttpResponse(200, request.path.encode() + b"|" + request.query + b"|" + request.body)


class Served:
    """A running server, and connections to it."""

    def __init__(self, app: App, limits: HttpLimits, port: int) -> None:
        self.app, self.limits, self.port = app, limits, port
        self.stop: Callable[[], None] = lambda: None
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, first: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        writer.write(first)
        return reader, writer

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@contextlib.asynccontextmanager
async def serving(tls: ServerTls | None = None, **options: Any) -> AsyncIterator[Served]:
    config = ServerConfig(model_repository=Path(), **options)
    app, limits = App(), HttpLimits(config)
    server = http_server(app, limits, 2.0, tls)
    with listen("127.0.0.1", 0, "port") as bound:
        served = Served(app, limits, bound.getsockname()[1])
        running = asyncio.create_task(server.serve(sockets=[bound]))
        while not server.started:
            await asyncio.sleep(0.001)
        served.stop = server.end
        try:
            yield served
        finally:
            app.go.set()
            served.close()
            server.end()
            await running


def run(test: Callable[[Served], Awaitable[None]], **options: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30), serving(**options) as served:
            await test(served)

    asyncio.run(bounded())


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


async def ended(reader: asyncio.StreamReader) -> bool:
    """Returns whether the other end has closed or reset the connection."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """Returns status, head and content of the next response."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head[9:12]), head, await reader.readexactly(length)


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def test_requests_on_one_connection_are_answered_in_their_order() -> None:
    async def test(served: Served) -> None:
        reader, _ = await served.connect(post("/slow", b"1") + post("/b?q=1", b"2") + post("/none", b"3") * 9)
        await served.app.begun.wait()
        served.app.go.set()
        assert (await response(reader))[2] == b"/slow||1"
        assert (await response(reader))[2] == b"/b|q=1|2"
        for _ in range(9):
            assert (await response(reader))[0] == 404

    run(test)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_may_come_in_pieces(chunked: bool) -> None:
    async def test(served: Served) -> None:
        body = bytes(range(256)) * 40
        head = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
        reader, writer = await served.connect(f"POST /a%20b HTTP/1.1\r\nHost: h\r\n{head}\r\n\r\n".encode())
        for start in range(0, len(body), 1000):
            part = body[start : start + 1000]
            writer.write(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n" if chunked else b"")
        assert (await response(reader))[2] == b"/a b||" + body
        assert served.limits._held == 0

    run(test)


def test_a_request_is_refused_before_its_body_and_the_connection_goes_on() -> None:
    async def test(served: Served) -> None:
        reader, writer = await served.connect(b"POST /none HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n")
        status, _, content = await response(reader)
        assert (status, content) == (404, b'{"error":"there is none"}')
        writer.write(b"0123456789" + post("/a", b"x"))
        assert (await response(reader))[2] == b"/a||x"

    run(test)


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_over_the_limit_is_refused_and_the_connection_closed(declared: bool) -> None:
    async def test(served: Served) -> None:
        head = "Content-Length: 5000" if declared else "Transfer-Encoding: chunked"
        body = b"" if declared else b"1000\r\n" + b"x" * 4096 + b"\r\n"
        reader, _ = await served.connect(f"POST /a HTTP/1.1\r\nHost: h\r\n{head}\r\n\r\n".encode() + body)
        status, raw, content = await response(reader)
        assert status == 413
        assert b"at most 4000 are taken" in content
        assert b"connection: close" in raw
        assert await reader.read() == b""
        assert served.limits._held == 0

    run(test, max_body_bytes=4000)


def test_all_bodies_together_are_bounded() -> None:
    async def test(served: Served) -> None:
        _, first = await served.connect(b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n" + b"x" * 900)
        while not served.limits._held:
            await asyncio.sleep(0.001)
        reader, _ = await served.connect(post("/a", b"x" * 900) + post("/b", b""))
        assert (await response(reader))[0] == 503
        assert (await response(reader))[2] == b"/b||"
        first.close()
        while served.limits._held:
            await asyncio.sleep(0.001)

    run(test, max_inflight_bytes=1024)


@pytest.mark.parametrize("trickled", [True, False])
def test_a_head_that_is_too_long_is_refused(trickled: bool) -> None:
    async def test(served: Served) -> None:
        reader, writer = await served.connect(b"GET /a HTTP/1.1\r\nHost: h\r\n")
        line = b"X-Filler: " + b"y" * 4000 + b"\r\n"
        with contextlib.suppress(ConnectionError):
            for _ in range(40):
                writer.write(line)
                if trickled:
                    await writer.drain()
                    await asyncio.sleep(0.002)
            writer.write(b"\r\n")
        with contextlib.suppress(ConnectionError):  # Bytes that are still being sent reset the connection.
            assert (await response(reader))[0] == 431

    run(test)


def test_a_body_that_does_not_come_is_given_up() -> None:
    async def test(served: Served) -> None:
        reader, _ = await served.connect(b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n123")
        status, _, content = await response(reader)
        assert status == 400
        assert b"did not arrive within 0.05 s" in content
        assert await reader.read() == b""
        # A head that is never finished, and one behind a request that is still being processed and is answered first.
        reader, _ = await served.connect(b"POST /a HT")
        assert b"did not arrive" in await reader.read()
        reader, _ = await served.connect(post("/slow", b"1") + b"POST /a")
        await served.app.begun.wait()
        await asyncio.sleep(0.5)
        served.app.go.set()
        assert (await response(reader))[2] == b"/slow||1"
        assert b"did not arrive" in await reader.read()

    run(test, body_timeout_s=0.05)


def test_an_idle_connection_is_closed_but_not_one_whose_request_is_worked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_module, "KEEP_ALIVE_S", 0.05)
    monkeypatch.setattr(limits_module, "_TICK_S", 0.01)

    async def test(served: Served) -> None:
        slow, _ = await served.connect(post("/slow", b"1") + post("/b", b"2"))
        await served.app.begun.wait()
        idle, _ = await served.connect()
        assert await idle.read() == b""
        await asyncio.sleep(0.1)
        served.app.go.set()
        assert (await response(slow))[2] == b"/slow||1"
        assert (await response(slow))[2] == b"/b||2"
        assert await slow.read() == b""

    run(test, body_timeout_s=0.05)


def test_a_client_that_goes_away_cancels_its_request_and_frees_its_bytes() -> None:
    async def test(served: Served) -> None:
        _, writer = await served.connect(post("/slow", b"x" * 1000) + post("/a", b"y" * 1000))
        await served.app.begun.wait()
        writer.close()
        while not served.app.cancelled or served.limits._held:
            await asyncio.sleep(0.001)

    run(test)


def test_clients_of_all_kinds_are_understood() -> None:
    async def test(served: Served) -> None:
        reader, writer = await served.connect(
            b"POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(
            b"x" + b"GET /b HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
        )
        assert (await response(reader))[2] == b"/a||x"
        assert (await response(reader))[2] == b"/b||"
        writer.write(b"HEAD /c HTTP/1.1\r\nHost: h\r\n\r\n" + post("/d", b""))
        assert b"content-length: 4\r\n" in await reader.readuntil(b"\r\n\r\n")
        assert (await response(reader))[2] == b"/d||"
        writer.write(post("/broken", b""))
        status, _, content = await response(reader)
        assert status == 500
        assert b"internal error" in content
        writer.write(post("/e", b"", "Connection: close"))
        assert (await response(reader))[2] == b"/e||"
        assert await reader.read() == b""
        for first, stays in (
            (b"GET /f HTTP/1.0\r\n\r\n", False),
            (b"GET /f HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
        ):
            reader, writer = await served.connect(first)
            head = (await response(reader))[1]
            assert (b"connection: keep-alive" in head) is stays
            if not stays:
                assert await reader.read() == b""

    run(test)


@pytest.mark.parametrize(
    "first",
    [b"\x16\x03\x01 this is TLS", b"GET a b c\r\n\r\n", b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n"],
)
def test_what_is_not_http_is_refused(first: bytes) -> None:
    async def test(served: Served) -> None:
        reader, _ = await served.connect(first)
        assert (await response(reader))[0] == 400
        assert await reader.read() == b""

    run(test)


def test_a_client_that_does_not_read_gets_no_further_answers() -> None:
    async def test(served: Served) -> None:
        reader, _ = await served.connect(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n" * 3 + post("/slow", b""))
        await asyncio.sleep(0.2)
        assert not served.app.begun.is_set()
        for _ in range(3):
            assert len((await response(reader))[2]) == 16_000_000
        served.app.go.set()
        assert (await response(reader))[2] == b"/slow||"

    run(test)


def test_what_was_begun_is_answered_before_the_server_stops() -> None:
    async def test(served: Served) -> None:
        reader, _ = await served.connect(post("/slow", b"1"))
        idle, _ = await served.connect()
        await served.app.begun.wait()
        served.stop()
        assert await idle.read() == b""
        served.app.go.set()
        status, head, content = await response(reader)
        assert (status, content) == (200, b"/slow||1")
        assert b"connection: close" in head
        assert await reader.read() == b""

    run(test)


def test_what_was_asked_before_bytes_that_are_no_http_is_answered_first() -> None:
    async def test(served: Served) -> None:
        reader, _ = await served.connect(post("/slow", b"1") + post("/b", b"2") + b"garbage\r\n\r\n")
        await served.app.begun.wait()
        served.app.go.set()
        assert (await response(reader))[2] == b"/slow||1"
        assert (await response(reader))[2] == b"/b||2"
        status, head, content = await response(reader)
        assert (status, b"connection: close" in head) == (400, True)
        assert b"not HTTP" in content
        assert await reader.read() == b""

    run(test)
