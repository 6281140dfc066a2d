"""Requests that came behind others on their connection: turns, time, and what the last of them leaves."""

from __future__ import annotations

import asyncio

import pytest

from serving.http import limits as limits_module
from serving.http import protocol as protocol_module
from serving.http import turns as turns_module
from tests.unit.serving.http.test_protocol import Served, ended, response, run

CHUNKED = b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("path", [b"/now", b"/a", b"/none"])
def test_one_that_never_waits_has_one_turn_at_a_time(path: bytes) -> None:
    async def test(served: Served) -> None:
        many, writer = await served.connect()
        for _ in range(20):
            writer.write(b"GET %s HTTP/1.1\r\nHost: h\r\n\r\n" % path * 50)
            for _ in range(50):
                assert (await response(many))[0] in (200, 404)
                assert len(served.limits.turns._asked) <= 1
        other, _ = await served.connect(b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n" * 3)
        for _ in range(3):
            assert (await response(other))[2] == b"/b||"
            assert len(served.limits.turns._asked) <= 2

    run(test)


@pytest.mark.parametrize(
    "refused",
    [
        b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5000\r\n\r\nabc",
        b"POST /none HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ],
)
def test_a_refused_request_behind_another_may_linger_no_longer_than_alone(
    refused: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served) -> None:
        reader, _ = await served.connect(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n" + refused)
        assert (await response(reader))[0] == 200
        assert (await response(reader))[0] in (404, 413)
        async with asyncio.timeout(5):
            assert await ended(reader)

    monkeypatch.setattr(limits_module, "_TICK_S", 0.01)
    monkeypatch.setattr(protocol_module, "LINGER_S", 0.2)
    run(test, body_timeout_s=20, max_body_bytes=4000)


@pytest.mark.parametrize("piece", [b"x", b"\r\n\r\n" * 70])
def test_a_body_has_its_time_however_its_pieces_look(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(served: Served) -> None:
        reader, writer = await served.connect(CHUNKED)
        answered = asyncio.create_task(response(reader))
        for _ in range(15):
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await asyncio.sleep(0.1)
        assert answered.done()
        assert (await answered)[0] == 400

    monkeypatch.setattr(limits_module, "_TICK_S", 0.01)
    run(test, body_timeout_s=0.5)


@pytest.mark.parametrize("rest", [b"B\x01D / HTTP/1.1\r\n\r\n", b"G"])
def test_the_error_behind_a_head_request_has_its_content(rest: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(served: Served) -> None:
        reader, _ = await served.connect(b"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n" + rest)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        status, _, content = await response(reader)
        assert (status, content[:9]) == (400, b'{"error":')

    monkeypatch.setattr(limits_module, "_TICK_S", 0.01)
    run(test, body_timeout_s=0.5)


def test_a_head_that_waits_for_its_turn_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(served: Served) -> None:
        reader, _ = await served.connect(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n" * 3 + b"G")
        for _ in range(3):
            assert (await response(reader))[0] == 200
        served.stop()
        async with asyncio.timeout(1.5):
            assert await ended(reader)

    monkeypatch.setattr(turns_module, "_APART_S", 0.4)
    run(test)
