"""Tests how many connections a port takes, and which of them are closed in favour of others."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from pathlib import Path

import pytest

from serving.config import ServerConfig
from serving.http.limits import NEVER
from tests.unit.serving.http.test_protocol import Served, ended, post, response, run, until

HEAD = b"GET /a HTTP/1.1\r\nHost: h\r\n"
# Bytes that the parser counts: target, names and values, and four bytes a header.
HEAD_BYTES = 2 + 4 + 1 + 4


def test_connections_that_would_take_the_last_files_are_refused_with_an_answer() -> None:
    async def test(served: Served) -> None:
        begun = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n1"
        ends = [await served.connect(begun) for _ in range(4)]
        await until(lambda: [each.idle_since for each in served.limits._connections] == [NEVER] * 4)
        # Whichever descriptor is free: threads of other tests may still close some.
        usual, served.limits._last_descriptor = served.limits._last_descriptor, 0
        for _ in range(5):
            reader, _ = await served.connect(begun)
            assert (await response(reader))[0] == 503
        assert len(served.limits._connections) == 4
        served.limits._last_descriptor = usual
        for _, writer in ends:
            writer.close()
        await until(lambda: not served.limits._connections)
        reader, _ = await served.connect(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await response(reader))[0] == 200

    run(test)


def test_idle_connections_give_way_to_those_that_come() -> None:
    async def test(served: Served) -> None:
        idle = [await served.connect() for _ in range(4)]
        await until(lambda: len(served.limits._connections) == 4)
        for _ in range(20):
            reader, writer = await served.connect(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await response(reader))[0] == 200
            writer.close()
            assert len(served.limits._connections) <= 4
        assert await ended(idle[0][0])

    run(test, max_connections=4)


@pytest.mark.parametrize("path", ["/none", "/a"])
def test_those_that_were_refused_and_send_no_body_give_way_too(path: str) -> None:
    async def test(served: Served) -> None:
        too_long = b"POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: 5000\r\n\r\n1" % path.encode()
        for _ in range(4):
            reader, _ = await served.connect(too_long)
            assert (await response(reader))[0] in {404, 413}
        for _ in range(20):
            reader, writer = await served.connect(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await response(reader))[0] == 200
            writer.close()
            assert len(served.limits._connections) <= 4

    run(test, max_connections=4, max_body_bytes=4000 if path == "/a" else 1 << 20)


def test_the_one_that_has_been_idle_for_longest_goes_first() -> None:
    async def test(served: Served) -> None:
        readers = []
        for count in range(3):
            reader, writer = await served.connect(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
            await response(reader)
            readers.append((reader, writer))
            assert len(served.limits._connections) == count + 1
        readers[0][1].write(b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n")
        await response(readers[0][0])
        fourth, _ = await served.connect(b"GET /c HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await response(fourth))[0] == 200
        assert await ended(readers[1][0])
        for reader, writer in (readers[0], readers[2]):
            writer.write(b"GET /d HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await response(reader))[0] == 200

    run(test, max_connections=3)


def test_heads_that_do_not_arrive_are_idle_too() -> None:
    async def test(served: Served) -> None:
        for _ in range(10):
            await served.connect(b"GET /a HTTP/1.1\r\nHost: h\r\nx: ")
        reader, _ = await served.connect(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await response(reader))[0] == 200

    run(test, max_connections=3)


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (get("/now") * 2, 2),
        (get("/a") * 2, 2),
        (get("/none") * 2, 2),
        (get("/a") + get("/now"), 2),
        (get("/a") + b"\r\n", 1),
        (get("/now") + b"\r\n", 1),
        (get("/a") + b"GET /", 1),
        (get("/now") + b"GET /", 1),
    ],
)
def test_one_whose_requests_came_together_is_idle_when_they_are_answered(sent: bytes, answers: int) -> None:
    async def test(served: Served) -> None:
        for _ in range(2):
            reader, _ = await served.connect(sent)
            for _ in range(answers):
                assert (await response(reader))[0] in (200, 404)
        await until(lambda: all(each.due < NEVER for each in served.limits._connections))
        # It is closed in favour of another, and would end after a while in any case.
        reader, _ = await served.connect(get("/a"))
        assert (await response(reader))[0] == 200

    run(test, max_connections=2)


def test_where_all_are_at_work_one_more_is_turned_away() -> None:
    async def test(served: Served) -> None:
        busy = [await served.connect(post("/slow", b"")) for _ in range(2)]
        await until(lambda: [each.idle_since for each in served.limits._connections] == [NEVER] * 2)
        reader, _ = await served.connect()
        status, head, content = await response(reader)
        assert (status, b"connection: close" in head, b"too many connections" in content) == (503, True, True)
        assert await ended(reader)
        served.app.go.set()
        for reader, _ in busy:
            assert (await response(reader))[0] == 200
        reader, _ = await served.connect(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await response(reader))[0] == 200

    run(test, max_connections=2)


def test_one_address_may_have_a_part_of_the_connections_only() -> None:
    async def test(served: Served) -> None:
        busy = [await served.connect(post("/slow", b"")) for _ in range(2)]
        await until(lambda: [each.idle_since for each in served.limits._connections] == [NEVER] * 2)
        reader, _ = await served.connect()
        status, _, content = await response(reader)
        assert (status, b"this address has 2 connections" in content) == (503, True)
        elsewhere, writer = await asyncio.open_connection("127.0.0.1", served.port, local_addr=("127.0.0.2", 0))
        writer.write(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await response(elsewhere))[0] == 200
        served.app.go.set()
        for reader, _ in busy:
            assert (await response(reader))[0] == 200
        # Idle connections of the same client are closed for its next one, and no other client's are.
        for _ in range(5):
            reader, _ = await served.connect(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await response(reader))[0] == 200
        writer.write(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await response(elsewhere))[0] == 200
        writer.close()
        served.close()
        await until(lambda: not served.limits._by_address)

    run(test, max_connections=8, max_connections_per_address=2)


def test_half_of_the_connections_are_for_one_address_unless_somebody_says_otherwise() -> None:
    counts = {None: 2048, 100: 100}
    for given, expected in counts.items():
        config = ServerConfig(model_repository=Path(), max_connections_per_address=given)
        assert config.connections_per_address == expected
    assert ServerConfig(model_repository=Path(), max_connections=10).connections_per_address == 64


def test_thousands_of_connections_stop_nobody() -> None:
    """Opens twenty times as many as the server takes: most are closed in favour of later ones."""

    async def test(served: Served) -> None:
        ends: list[socket.socket] = []
        loop = asyncio.get_running_loop()
        try:
            for number in range(5000):
                end = socket.socket()
                end.setblocking(False)
                ends.append(end)
                await loop.sock_connect(end, ("127.0.0.1", served.port))
                if len(ends) > 600:
                    ends.pop(0).close()
                if number % 500 == 499:
                    reader, writer = await served.connect(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
                    assert (await response(reader))[0] == 200
                    writer.close()
        finally:
            for end in ends:
                end.close()
        await until(lambda: not served.limits._connections)

    run(test, max_connections=256)


def test_a_connection_that_has_ended_is_freed_at_once() -> None:
    async def test(served: Served) -> None:
        reader, writer = await served.connect(HEAD + b"\r\n")
        assert (await response(reader))[0] == 200
        (connection,) = (weakref.ref(each) for each in served.limits._connections)
        writer.close()
        await until(lambda: not served.limits._connections)
        await asyncio.sleep(0.01)
        assert connection() is None

    gc.disable()
    try:
        run(test)
    finally:
        gc.enable()
