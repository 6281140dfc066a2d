"""Requests by the letter of RFC 9110 and RFC 9112: a table of what is sent, and of what has to come back."""

from __future__ import annotations

import asyncio
import email.utils
import time

import pytest

from tests.unit.serving.http.test_protocol import Served, response, run

ENDS, GOES_ON = True, False
HOST = b"Host: h\r\n"
NEXT = b"GET /next HTTP/1.1\r\nHost: h\r\n\r\n"

# what is sent, the status, whether the connection ends with it, and what the error names
REFUSED = {
    # RFC 9112, 3.2: exactly one Host, with a host in it
    "no Host": (b"GET /a HTTP/1.1\r\n\r\n", 400, b"Host is missing"),
    "two Hosts": (b"GET /a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, b"host came twice"),
    "two equal Hosts": (b"GET /a HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", 400, b"host came twice"),
    "two Hosts of 1.0": (b"GET /a HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400, b"host came twice"),
    "a Host with a path": (b"GET /a HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, b"is no host"),
    "a Host with a user": (b"GET /a HTTP/1.1\r\nHost: me@a\r\n\r\n", 400, b"is no host"),
    "a Host with a space": (b"GET /a HTTP/1.1\r\nHost: a b\r\n\r\n", 400, b"is no host"),
    "a Host with two ports": (b"GET /a HTTP/1.1\r\nHost: a:1:2\r\n\r\n", 400, b"is no host"),
    "a Host with no number for a port": (b"GET /a HTTP/1.1\r\nHost: a:b\r\n\r\n", 400, b"is no host"),
    "a Host with an open bracket": (b"GET /a HTTP/1.1\r\nHost: [::1\r\n\r\n", 400, b"is no host"),
    "a Host of two": (b"GET /a HTTP/1.1\r\nHost: a,b\r\nHost: c\r\n\r\n", 400, b"came twice"),
    # RFC 9112, 6.1 and 6.3: framing that two readers may take for two things
    "1.0 with Transfer-Encoding": (
        b"POST /a HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        400,
        b"Transfer-Encoding",
    ),
    "1.0 that stays, with Transfer-Encoding": (
        b"POST /a HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        400,
        b"Transfer-Encoding",
    ),
    "both framings": (
        b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        400,
        b"",
    ),
    "two lengths": (b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400, b""),
    "a length with a sign": (b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: +1\r\n\r\nx", 400, b""),
    "a space before the colon": (b"GET /a HTTP/1.1\r\n" + HOST + b"x : y\r\n\r\n", 400, b""),
    "a header over two lines": (b"GET /a HTTP/1.1\r\n y\r\n" + HOST + b"\r\n", 400, b""),
    "a coding that is not known": (
        b"POST /a HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        501,
        b"gzip, chunked",
    ),
    "codings in two lines": (
        b"POST /a HTTP/1.1\r\n"
        + HOST
        + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        400,
        b"transfer-encoding came twice",
    ),
    # RFC 9110, 15.5.15 and 15.6.6; RFC 9112, 2.3
    "a target of 64 KiB": (b"GET /" + b"a" * (64 << 10) + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414, b"target"),
    "a target of 20 KiB": (b"GET /" + b"a" * (20 << 10) + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414, b"target"),
    "a target of 100 KiB with a query": (
        b"GET /a?" + b"a" * (100 << 10) + b" HTTP/1.1\r\nHost: h\r\n\r\n",
        414,
        b"target",
    ),
    "a target without an end": (b"GET /" + b"a" * (200 << 10), 414, b"target"),
    "HTTP/2.0": (b"GET /a HTTP/2.0\r\nHost: h\r\n\r\n", 505, b"HTTP"),
    "HTTP/2's preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, b"HTTP"),
    "HTTP/3.0": (b"GET /a HTTP/3.0\r\nHost: h\r\n\r\n", 505, b"HTTP"),
    "HTTP/0.9": (b"GET /a HTTP/0.9\r\nHost: h\r\n\r\n", 505, b"HTTP"),
    "a request without a version": (b"GET /a\r\n\r\n", 505, b"HTTP"),
    "no HTTP": (b"GET /a HTCPCP/1.0\r\n\r\n", 400, b""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_and_the_connection_ends(case: str) -> None:
    sent, expected, said = REFUSED[case]

    async def test(served: Served) -> None:
        reader, writer = await served.connect(sent + NEXT)
        status, head, content = await response(reader)
        assert (status, said in content) == (expected, True), content
        assert b"connection: close" in head
        writer.write_eof()
        assert await reader.read() == b""
        assert not served.app.headers
        assert served.limits._held == 0

    run(test)


ANSWERED = {
    "Host in capitals": (b"GET /a HTTP/1.1\r\nHOST: H\r\n\r\n", b"/a||"),
    "Host with a port": (b"GET /a HTTP/1.1\r\nHost: a-b.c_d:80\r\n\r\n", b"/a||"),
    "Host of IPv6": (b"GET /a HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", b"/a||"),
    "an empty Host": (b"GET /a HTTP/1.1\r\nHost:\r\n\r\n", b"/a||"),
    "1.0 without Host": (b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", b"/a||"),
    "a whole URL": (b"GET http://other:80/a?q HTTP/1.1\r\nHost: h\r\n\r\n", b"/a|q|"),
    "an encoded slash": (b"GET /a%2Fb/c%2f%20d HTTP/1.1\r\nHost: h\r\n\r\n", b"/a%2Fb/c%2F d||"),
    "an empty line before it": (b"\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n", b"/a||"),
    "another case of chunked": (
        b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        b"/a||x",
    ),
    "a target of 16 KiB": (b"GET /a?" + b"q" * 16_300 + b" HTTP/1.1\r\nHost: h\r\n\r\n", b"/a|" + b"q" * 16_300 + b"|"),
}


@pytest.mark.parametrize("case", ANSWERED)
def test_it_is_answered_and_the_connection_goes_on(case: str) -> None:
    sent, expected = ANSWERED[case]

    async def test(served: Served) -> None:
        reader, _ = await served.connect(sent + NEXT)
        status, _, content = await response(reader)
        assert (status, content) == (200, expected)
        assert (await response(reader))[2] == b"/next||"

    run(test)


@pytest.mark.parametrize(
    ("head", "body", "waits"),
    [
        (b"POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n", b"x", True),
        (
            b"POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"1\r\nx\r\n0\r\n\r\n",
            True,
        ),
        (b"POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n", b"", False),
        (b"POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n", b"", False),
        (b"GET /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n", b"", False),
        (b"POST /a HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n", b"x", False),
        (b"POST /none HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n", b"x", False),
    ],
)
def test_only_a_body_that_is_waited_for_is_asked_for(head: bytes, body: bytes, waits: bool) -> None:
    async def test(served: Served) -> None:
        reader, writer = await served.connect(head)
        if waits:
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        else:
            await asyncio.sleep(0.05)
        writer.write(body)
        assert (await response(reader))[0] == (404 if b"/none" in head else 200)

    run(test)


def test_head_is_get_without_its_body() -> None:
    async def test(served: Served) -> None:
        reader, writer = await served.connect(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n")
        _, of_get, _ = await response(reader)
        writer.write(b"HEAD /large HTTP/1.1\r\nHost: h\r\n\r\n" + NEXT)
        of_head = await reader.readuntil(b"\r\n\r\n")
        assert without_date(of_head) == without_date(of_get)
        assert (await response(reader))[2] == b"/next||"
        writer.write(b"HEAD /none HTTP/1.1\r\nHost: h\r\n\r\n" + NEXT)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404")
        assert (await response(reader))[2] == b"/next||"

    run(test)


def without_date(head: bytes) -> list[bytes]:
    return [line for line in head.split(b"\r\n") if not line.startswith(b"date: ")]


def test_every_response_says_when_it_was_made() -> None:
    async def test(served: Served) -> None:
        for request in (NEXT, b"GET /none HTTP/1.1\r\nHost: h\r\n\r\n", b"GET /a\r\n\r\n"):
            reader, _ = await served.connect(request)
            _, head, _ = await response(reader)
            dates = [line[6:].decode() for line in head.split(b"\r\n") if line.startswith(b"date: ")]
            made = email.utils.parsedate_to_datetime(dates.pop())
            assert not dates
            assert abs(made.timestamp() - time.time()) < 10

    run(test)


def test_a_hundred_and_twenty_eight_requests_at_once_are_all_answered() -> None:
    async def test(served: Served) -> None:
        reader, _ = await served.connect(NEXT * 128)
        for _ in range(128):
            assert (await response(reader))[2] == b"/next||"

    run(test)


@pytest.mark.parametrize("wrong", [b"GET", b"HEAD"])
def test_an_error_of_a_head_that_cannot_be_read_has_no_content_for_head(wrong: bytes) -> None:
    async def test(served: Served) -> None:
        reader, _ = await served.connect(wrong + b" /a HTTP/1.1\r\nHost: h\r\nx(y): 1\r\n\r\n")
        said = await reader.read()
        head, _, content = said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert bool(content) == (wrong == b"GET")

    run(test)
