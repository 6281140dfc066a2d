"""Tests a connection's bounds: heads, headers, requests ahead of their answers, time, and its share beside others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from serving.config import ServerConfig
from serving.http import limits as limits_module
from serving.http import protocol as protocol_module
from serving.http import turns as turns_module
from serving.http.exchange import Exchange
from serving.http.head import MAX_HEADER_BYTES, MAX_HEADERS
from serving.http.limits import NEVER, HttpLimits
from tests.unit.serving.http.test_protocol import App, Served, ended, post, response, run, until

HEAD = b"GET /a HTTP/1.1\r\nHost: h\r\n"
# Bytes that the parser counts: target, names and values, and four bytes a header.
HEAD_BYTES = 2 + 4 + 1 + 4


def padded(size: int) -> bytes:
    """Returns a head of that many bytes."""
    rest = size - HEAD_BYTES
    lines = []
    while rest > 0:
        value = min(rest - 5, 8000)
        lines.append(b"a: " + b"x" * value + b"\r\n")
        rest -= value + 5
    return HEAD + b"".join(lines) + b"\r\n"


@pytest.mark.parametrize("step", [0, 1000])
@pytest.mark.parametrize(("size", "status"), [(MAX_HEADER_BYTES - 8, 200), (MAX_HEADER_BYTES + 8, 431)])
def test_a_head_has_one_bound_whole_and_in_pieces(step: int, size: int, status: int) -> None:
    async def test(served: Served) -> None:
        reader, writer = await served.connect()
        head = padded(size)
        for start in range(0, len(head), step or len(head)):
            writer.write(head[start : start + (step or len(head))])
            if step:
                await writer.drain()
                await asyncio.sleep(0)
        found, text, _ = await response(reader)
        assert found == status
        if status == 431:
            assert b"connection: close" in text
            assert await ended(reader)

    run(test)


@pytest.mark.parametrize("begin", [b"GET /", b"GET / HTTP/1.1\r\nHost: h\r\n", b"GET / HTTP/1.1\r\nHost: h\r\na: "])
def test_a_head_without_an_end_is_cut_off(begin: bytes) -> None:
    async def test(served: Served) -> None:
        reader, writer = await served.connect(begin)
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"y" * 16_384)
                await writer.drain()
                await asyncio.sleep(0)
        await until(lambda: not served.limits._connections)

    run(test)


CHUNKED = b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"3\r\nabc\r\n0\r\n", b"k%06d: v\r\n"),
        (b"0\r\nk: ", b"%09d"),
        (b"3;", b"k%06d=v;"),
        (b"3\r\nabc\r\n0;", b"k%06d=v;"),
    ],
    ids=["trailers", "a trailer", "an extension", "the last extension"],
)
def test_what_follows_a_head_and_is_no_body_is_cut_off(begin: bytes, more: bytes) -> None:
    async def test(served: Served) -> None:
        reader, writer = await served.connect(CHUNKED + begin)
        await until(lambda: any(each.idle_since == NEVER for each in served.limits._connections))
        # Not a byte more than the bound is sent: unread bytes would reset the connection and lose the answer.
        rest = b"".join(more % count for count in range(MAX_HEADER_BYTES // 8))
        writer.write(rest[: MAX_HEADER_BYTES + 1])
        status, head, content = await response(reader)
        assert (status, b"connection: close" in head, b"trailers" in content) == (431, True, True)
        await until(lambda: not served.limits._connections)

    run(test)


def test_a_trailer_is_no_header() -> None:
    async def test(served: Served) -> None:
        trailers = b"Authorization: Bearer b\r\nX-Late: 1\r\n\r\n"
        first = CHUNKED.replace(b"Host: h", b"Host: h\r\nAuthorization: Bearer a")
        reader, _ = await served.connect(
            first + b"3\r\nabc\r\n0\r\n" + trailers + b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n"
        )
        assert (await response(reader))[2].endswith(b"abc")
        assert (await response(reader))[0] == 200
        assert [dict(each) for each in served.app.headers] == [
            {b"host": b"h", b"authorization": b"Bearer a", b"transfer-encoding": b"chunked"},
            {b"host": b"h"},
        ]

    run(test)


def test_a_long_body_in_small_chunks_has_no_such_bound() -> None:
    async def test(served: Served) -> None:
        chunks = b"1;%s\r\nx\r\n" % (b"e" * 40) * 20_000
        reader, writer = await served.connect(CHUNKED)
        for start in range(0, len(chunks), 5000):
            writer.write(chunks[start : start + 5000])
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        status, _, content = await response(reader)
        assert (status, content.count(b"x")) == (200, 20_000)

    run(test)


@pytest.mark.parametrize(("count", "status"), [(MAX_HEADERS, 200), (MAX_HEADERS + 1, 431)])
def test_headers_are_counted(count: int, status: int) -> None:
    async def test(served: Served) -> None:
        lines = b"".join(b"h%d: x\r\n" % number for number in range(count - 1))
        reader, _ = await served.connect(HEAD + lines + b"\r\n")
        assert (await response(reader))[0] == status

    run(test)


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 1\r\nContent-Length: 2",
        b"Content-Length: 1\r\nContent-Length: 1",
        b"Content-Length: 1\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 1",
        b"Transfer-Encoding: identity, chunked, x",
        b"Content-Length: +1",
        b"Content-Length: 1, 1",
        b"Content-Length: 0x1",
        b"Content-Length: " + b"9" * 40,
        b"Content-Length : 1",
        b"Bad Name: 1",
        b"a: b\nc: d",
        b"Authorization: Bearer a\r\nauthorization: Bearer b",
        b"Inference-Header-Content-Length: 1\r\nInference-Header-Content-Length: 2",
    ],
)
def test_what_two_readers_would_read_as_two_requests_is_refused(lines: bytes) -> None:
    async def test(served: Served) -> None:
        head = b"POST /a HTTP/1.1\r\nHost: h\r\n" + lines
        reader, _ = await served.connect(head + b"\r\n\r\nxGET /b HTTP/1.1\r\nHost: h\r\n\r\n")
        status, _, content = await response(reader)
        assert status in (400, 413), content

    run(test)


@pytest.mark.slow
@pytest.mark.parametrize(
    "each",
    [
        b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab\r\n\r",
        b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab\r\n\r\r\n0\r\n\r\n",
    ],
    ids=["no body", "a length", "chunked"],
)
def test_requests_far_ahead_of_their_answers_stay_unread_and_are_counted(
    each: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served) -> None:
        reader, writer = await served.connect(post("/slow", b""))
        await served.app.begun.wait()
        writer.write(each * count)
        await until(lambda: served.limits._unread > 0)
        await asyncio.sleep(0.05)
        connection: Any
        (connection,) = served.limits._connections
        assert not connection._waiting
        assert len(connection._unread.data) == served.limits._unread < 600_000
        served.app.go.set()
        assert (await response(reader))[0] == 200
        for _ in range(count):
            assert (await response(reader))[2] == b"/a||" + (b"" if each.startswith(b"GET") else b"ab\r\n\r")
        assert served.limits._held == served.limits._unread == 0
        assert connection.due < NEVER

    count = 20_000
    monkeypatch.setattr(turns_module, "_APART_S", 0.0)
    run(test)


def test_what_is_unread_of_a_connection_that_is_lost_is_counted_no_more() -> None:
    async def test(served: Served) -> None:
        reader, writer = await served.connect(post("/slow", b""))
        await served.app.begun.wait()
        writer.write(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n" * 2000)
        await until(lambda: served.limits._unread > 0)
        writer.transport.abort()
        assert await ended(reader)
        served.app.go.set()
        await until(lambda: not served.limits._connections)
        assert served.limits._unread == 0

    run(test)


def test_what_would_be_unread_beyond_the_bound_is_refused() -> None:
    async def test(served: Served) -> None:
        reader, writer = await served.connect(post("/slow", b""))
        await served.app.begun.wait()
        writer.write(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n" * 2000)
        await until(lambda: any(cast(Any, each)._is_broken for each in served.limits._connections))
        served.app.go.set()
        assert [(await response(reader))[0] for _ in range(2)] == [200, 503]
        assert await ended(reader)
        assert served.limits._unread == 0

    run(test, max_body_bytes=10_000, max_inflight_bytes=40_000)


def test_one_that_has_all_of_its_requests_in_one_read_delays_no_other() -> None:
    async def test(served: Served) -> None:
        many, _ = await served.connect(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n" * 5000)
        assert (await response(many))[0] == 200
        for _ in range(20):
            reader, writer = await served.connect(b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await response(reader))[2] == b"/b||"
            writer.close()
        assert len(served.app.headers) < 4000
        assert (await response(many))[0] == 200

    run(test)


@pytest.mark.parametrize("path", [b"/now", b"/a", b"/none"])
def test_many_requests_in_one_read_are_started_at_a_bounded_rate(path: bytes) -> None:
    async def test(served: Served) -> None:
        many, _ = await served.connect(b"GET %s HTTP/1.1\r\nHost: h\r\n\r\n" % path * 201)
        began = time.monotonic()
        for _ in range(201):
            assert (await response(many))[0] in (200, 404)
        assert time.monotonic() - began > 0.09

    run(test)


@pytest.mark.parametrize("step", range(1, 30))
@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 6\r\n\r\na\r\n\r\nb", b"Transfer-Encoding: chunked\r\n\r\n6\r\na\r\n\r\nb\r\n0\r\n\r\n"],
)
def test_requests_are_distinguished_wherever_reads_divide_them(framing: bytes, step: int) -> None:
    async def test(served: Served) -> None:
        sent = b"\r\n".join([b"POST /a HTTP/1.1", b"Host: h", framing]) * 4
        (reader, writer) = await served.connect()
        for at in range(0, len(sent), step):
            writer.write(sent[at : at + step])
            await asyncio.sleep(0)
        for _ in range(4):
            assert (await response(reader))[2] == b"/a||a\r\n\r\nb"

    run(test)


def test_a_body_behind_requests_that_wait_is_no_late_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(served: Served) -> None:
        reader, writer = await served.connect(post("/slow", b""))
        await served.app.begun.wait()
        body = b"y\r\n\r\n" * 10_000
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        writer.write(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n" * 3 + CHUNKED + chunks)
        await asyncio.sleep(0.6)
        served.app.go.set()
        assert [(await response(reader))[0] for _ in range(4)] == [200] * 4
        content = (await response(reader))[2]
        assert content == b"/a||" + body
        # A body whose rest does not come is still ended.
        writer.write(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n" * 30 + post("/a", b"abc")[:-1])
        for _ in range(30):
            assert (await response(reader))[0] == 200
        assert (await response(reader))[0] == 400

    monkeypatch.setattr(limits_module, "_TICK_S", 0.01)
    run(test, body_timeout_s=0.3)


def test_requests_some_way_ahead_are_answered_in_turn() -> None:
    async def test(served: Served) -> None:
        reader, writer = await served.connect(post("/slow", b""))
        await served.app.begun.wait()
        writer.write(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n" * 100)
        served.app.go.set()
        for _ in range(101):
            assert (await response(reader))[0] == 200

    run(test)


def test_offers_of_another_protocol_without_end_are_no_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    async def test(served: Served) -> None:
        offer = b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
        reader, _ = await served.connect(offer * 3000)
        for _ in range(3000):
            assert (await response(reader))[0] == 200

    with caplog.at_level(logging.WARNING):
        run(test)
    assert not caplog.records


def test_a_client_that_does_not_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(served: Served) -> None:
        end = socket.create_connection(("127.0.0.1", served.port))
        try:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            end.sendall(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n")
            await until(lambda: len(served.limits._connections) == 1)
            await until(lambda: not served.limits._connections)
        finally:
            end.close()

    monkeypatch.setattr(limits_module, "_TICK_S", 0.01)
    run(test, body_timeout_s=0.3)


def test_one_that_does_not_read_the_last_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(served: Served) -> None:
        end = socket.create_connection(("127.0.0.1", served.port))
        try:
            end.sendall(b"GET /large HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            await until(lambda: len(served.limits._connections) == 1)
            await until(lambda: not served.limits._connections)
        finally:
            end.close()

    monkeypatch.setattr(limits_module, "_TICK_S", 0.01)
    run(test, body_timeout_s=0.3)


class Transport(asyncio.Transport):
    """Keeps what is written until `read` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.unsent += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


def test_one_that_reads_slowly_but_on_has_more_time() -> None:
    async def test() -> None:
        config = ServerConfig(model_repository=Path(), body_timeout_s=30)
        state = SimpleNamespace(connections=set(), tasks=set())
        made = protocol_module.HttpProtocol(None, state, None, app=App(), limits=HttpLimits(config))
        transport = Transport()
        made.connection_made(transport)
        transport.write(bytes(1000))
        made.pause_writing()
        for left in range(999, 990, -1):
            transport.unsent = left
            made.expire()
            assert not transport.is_aborted
            assert time.monotonic() + 20 < made.due < time.monotonic() + 31
        made.expire()
        assert transport.is_aborted
        made.connection_lost(None)

    asyncio.run(test())


def test_what_answers_keeps_no_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request and its exchange reference each other while the request is answered, and no longer."""
    kept: list[Exchange] = []
    begin = protocol_module.HttpProtocol._start

    def start(self: protocol_module.HttpProtocol, exchange: Exchange) -> None:
        kept.append(exchange)
        begin(self, exchange)

    async def test(served: Served) -> None:
        reader, _ = await served.connect(post("/a", b"xyz"))
        assert (await response(reader))[2].endswith(b"xyz")
        assert kept[0].request.room is None

    monkeypatch.setattr(protocol_module.HttpProtocol, "_start", start)
    run(test)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 100, 4000])
def test_small_chunks_take_the_memory_that_is_counted(size: int) -> None:
    body = os.urandom(1 << 20)
    parts = (body[at : at + size] for at in range(0, len(body), size))
    sent = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)

    async def test(served: Served) -> None:
        reader, writer = await served.connect(b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        tracemalloc.start()
        for at in range(0, len(sent), 1 << 15):
            writer.write(sent[at : at + (1 << 15)])
            await writer.drain()
        await until(lambda: served.limits._held == len(body))
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert taken < 1.3 * len(body) + (1 << 20)  # The rest is buffers of both ends.
        writer.write(b"0\r\n\r\n")
        assert (await response(reader))[2] == b"/a||" + body
        assert served.limits._held == 0

    run(test)


def test_the_pieces_of_a_body_that_was_refused_are_not_read() -> None:
    async def test(served: Served) -> None:
        head = b"POST /none HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        reader, writer = await served.connect(head + b"1\r\nx\r\n" * 1000)
        status, said, _ = await response(reader)
        assert (status, b"connection: close" in said) == (404, True)
        writer.write(b"this would be no chunk\r\n" * 100 + b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
        assert await reader.read() == b""
        assert served.app.headers == []
        assert served.limits._held == 0

    run(test)
