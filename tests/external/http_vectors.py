"""Requests in HTTP/1.1 on which servers and proxies have disagreed, each with the answers that RFC 9112 asks for here.

A vector is bytes for one connection: a request, or what looks like one, or several. Where two answers would be allowed,
it has the one that this server gives: the stricter one. `tests/external/http_smuggling.py` sends them.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass

LINE = b"POST /v2/models/ranker/infer HTTP/1.1\r\n"
HOST = b"Host: a\r\n"
LIVE = b"GET /v2/health/live HTTP/1.1\r\n" + HOST + b"\r\n"
# What a server that took a body for a request would find in it.
HIDDEN = b"GET /v2/health/live?hidden HTTP/1.1\r\nHost: a\r\n\r\n"
# What becomes of the connection: it goes on, it is closed, or the server waits for the rest of a request.
OPEN, CLOSED, INSIDE = "open", "closed", "inside"
JSON = b'{"inputs":[{"name":"user","shape":[1],"datatype":"INT64","data":[1]}]}'


@dataclass(frozen=True)
class Vector:
    """Bytes for a connection, and what has to come back."""

    name: str
    data: bytes
    #: Statuses of all answers, in their order; those of interim ones (1xx) too.
    statuses: tuple[int, ...] = (200,)
    #: What becomes of the connection behind the last answer. Unless it is open, nothing further is answered.
    end: str = OPEN
    #: How many of the requests native code answers where they are sent alone.
    native: int = 0
    #: Whether the first answer is to HEAD, and has no content.
    is_head: bool = False

    def by_python(self) -> bytes | None:
        """Returns the same with a header that native code does not take; None where there is no place for one."""
        if HOST not in self.data:
            return None
        return self.data.replace(HOST, HOST + b"Authorization: Bearer none\r\n", 1)


class Requests:
    """Writes variants of one plain request. body: with json_length bytes of JSON at its beginning."""

    def __init__(self, body: bytes, json_length: int) -> None:
        self.body = body
        self.json_length = b"Inference-Header-Content-Length: %d\r\n" % json_length
        self.length = b"Content-Length: %d\r\n" % len(body)

    def plain(
        self,
        more: bytes = b"",
        *,
        line: bytes = LINE,
        host: bytes = HOST,
        length: bytes | None = None,
        end: bytes = b"",
    ) -> bytes:
        """Returns the plain request with one part replaced. more: further header lines. end: follows the body."""
        length = self.length if length is None else length
        return line + host + self.json_length + length + more + b"\r\n" + self.body + end

    def sized(self, value: bytes) -> bytes:
        """Returns the plain request with another value of Content-Length; %d in it is the right one."""
        return self.plain(length=b"Content-Length: " + value.replace(b"%d", b"%d" % len(self.body)) + b"\r\n")

    def chunked(
        self,
        coding: bytes = b"Transfer-Encoding: chunked\r\n",
        *,
        size: int = 100,
        mark: bytes = b"%x",
        after: bytes = b"\r\n",
        last: bytes = b"0\r\n",
        trailer: bytes = b"",
    ) -> bytes:
        """Returns the plain request with its body in chunks.

        mark: a size, where %x stands for the right one. after: what ends a chunk's data.
        """
        pieces = [self.body[at : at + size] for at in range(0, len(self.body), size)]
        sizes = [mark.replace(b"%x", b"%x" % len(piece)).replace(b"%X", b"%X" % len(piece)) for piece in pieces]
        body = b"".join(size + b"\r\n" + piece + after for size, piece in zip(sizes, pieces, strict=True))
        return LINE + HOST + self.json_length + coding + b"\r\n" + body + last + trailer + b"\r\n"


def vectors(body: bytes, json_length: int) -> list[Vector]:
    """Returns all vectors. body: of a plain request that native code answers, with json_length bytes of JSON."""
    make = Requests(body, json_length)
    found = [
        *_lengths(make),
        *_codings(make),
        *_chunks(make),
        *_header_lines(make),
        *_request_lines(make),
        *_hosts(make),
        *_options(make),
        *_sequences(make),
    ]
    assert len({vector.name for vector in found}) == len(found)
    return found


def _bad(name: str, data: bytes, *statuses: int) -> Vector:
    return Vector(name, data, statuses or (400,), end=CLOSED)


def _lengths(make: Requests) -> Iterator[Vector]:
    yield Vector("plain", make.plain(), native=1)
    for value in (b"00%d", b"%d \t", b"\t%d"):
        yield Vector(f"a length {value!r}", make.sized(value), native=1)
    refused = (
        b"",
        b"+%d",
        b"-1",
        b"-%d",
        b"0x10",
        b"%d 1",
        b"%d;",
        b"1e3",
        b"%d.0",
        b"%d, %d",
        b"%d,",
        b"1_0",
        b'"%d"',
    )
    for value in (*refused, b"%d\0", b"%d\x0b", b"%d\xa0"):
        yield _bad(f"a length {value!r}", make.sized(value))
    for value in (b"9223372036854775807", b"9223372036854775808", b"18446744073709551615", b"999999999999"):
        yield _huge(make, value)
    for value in (b"18446744073709551616", b"18446744073709551617", b"1" + b"0" * 40):
        yield _bad(f"a length {value!r}", make.sized(value))
    yield _bad("two equal lengths", make.plain(make.length))
    yield _bad("two unequal lengths", make.plain(b"Content-Length: 5\r\n"))
    yield _bad("two lengths, the last one in small letters", make.plain(b"content-length: 0\r\n"))
    yield _bad("a length over two lines", make.plain(length=b"Content-Length:\r\n %d\r\n" % len(make.body)))
    yield Vector("a header Content_Length", make.plain(b"Content_Length: 5\r\n"), native=1)
    yield Vector("a header Content-Length-X", make.plain(b"Content-Length-X: 5\r\n"), native=1)
    yield _bad("a length too small by one", make.sized(b"%d" % (len(make.body) - 1)), 400, 400)
    yield Vector("a length of nothing", make.plain(length=b"Content-Length: 0\r\n", end=b"")[: -len(make.body)], (400,))


def _huge(make: Requests, value: bytes) -> Vector:
    # The body is never complete: the server does not wait for it, but it cannot find what follows either.
    return Vector(f"a length {value!r}", make.sized(value), (413,), INSIDE)


def _codings(make: Requests) -> Iterator[Vector]:
    chunked, both = b"Transfer-Encoding: chunked\r\n", make.chunked
    smuggled = b"0\r\n\r\n" + HIDDEN
    yield _bad("CL.TE", LINE + HOST + b"Content-Length: %d\r\n" % len(smuggled) + chunked + b"\r\n" + smuggled)
    yield _bad(
        "TE.CL", LINE + HOST + chunked + b"Content-Length: 4\r\n\r\n" + b"%x\r\n" % len(HIDDEN) + HIDDEN + smuggled
    )
    yield _bad("TE.CL of nothing", both(chunked + b"Content-Length: 0\r\n"))
    yield _bad("TE.TE, the last one identity", both(chunked + b"Transfer-Encoding: identity\r\n"))
    yield _bad("TE.TE, equal", both(chunked + chunked))
    yield _bad("TE.TE, the first one unknown", both(b"Transfer-Encoding: cow\r\n" + chunked))
    # The parser knows that nothing may follow `chunked`, and leaves other codings to the server.
    for value in (b"xchunked", b"chunked-x", b"identity", b"gzip", b"gzip, chunked", b"identity, chunked"):
        yield _bad(f"a coding {value!r}", both(b"Transfer-Encoding: " + value + b"\r\n"), 501)
    for value in (b'"chunked"', b"chunked;q=1", b"chu nked"):
        yield _bad(f"a coding {value!r}", both(b"Transfer-Encoding: " + value + b"\r\n"), 501)
    for value in (b"chunked, chunked", b"chunked, identity", b"chunked, gzip", b""):
        yield _bad(f"a coding {value!r}", both(b"Transfer-Encoding: " + value + b"\r\n"))
    for value in (b"\x0bchunked", b"chunked\0", b"chunked\x0c"):
        yield _bad(f"a coding {value!r}", both(b"Transfer-Encoding: " + value + b"\r\n"))
    yield Vector("a coding in capitals", both(b"TRANSFER-encoding:CHUNKED \r\n"))
    # The parser takes the tab for a part of the coding, which is safe.
    yield _bad("a coding before a tab", both(b"Transfer-Encoding: chunked\t\r\n"))
    offer = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    yield _bad("an offer with a coding before a tab", both(offer + b"Transfer-Encoding: chunked\t\r\n"))
    yield _bad("an offer with CL.TE", both(offer + chunked + make.length))
    yield Vector("an offer with chunks", both(offer + chunked))
    yield _bad("a space before a coding's colon", both(b"Transfer-Encoding : chunked\r\n"))
    yield _bad("a tab before a coding's colon", both(b"Transfer-Encoding\t: chunked\r\n"))
    yield _bad("a coding behind a bare LF", make.plain(b"X: a\nTransfer-Encoding: chunked\r\n"))
    yield _bad("a coding behind a bare CR", make.plain(b"X: a\rTransfer-Encoding: chunked\r\n"))
    yield _bad("a coding behind a NUL", make.plain(b"X: a\0Transfer-Encoding: chunked\r\n"))
    yield _bad("a folded coding", both(b"Transfer-Encoding:\r\n chunked\r\n"))
    yield _bad("a coding that a space begins", make.plain(b" Transfer-Encoding: chunked\r\n"))
    yield Vector("a header Transfer_Encoding", make.plain(b"Transfer_Encoding: chunked\r\n"), native=1)
    yield Vector("a header X-Transfer-Encoding", make.plain(b"X-Transfer-Encoding: chunked\r\n"), native=1)
    yield _bad("chunks of HTTP/1.0", both().replace(b"HTTP/1.1", b"HTTP/1.0"))


def _chunks(make: Requests) -> Iterator[Vector]:
    chunked = make.chunked
    yield Vector("one chunk", chunked(size=1 << 20))
    yield Vector("chunks of a byte", chunked(size=1))
    yield Vector("sizes in capitals behind zeros", chunked(mark=b"000%X"))
    yield Vector("a last chunk of zeros", chunked(last=b"00000\r\n"))
    yield Vector("chunk extensions", chunked(mark=b"%x;a=b;c", last=b"0;d\r\n"))
    yield Vector("quoted chunk extensions", chunked(mark=b'%x;a="b;c\\"d"'))
    yield Vector("trailers", chunked(trailer=b"X-Sum: 1\r\nX-More: 2\r\n"))
    yield Vector("a trailer Host", chunked(trailer=b"Host: b\r\n"))
    for name, value in ((b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked")):
        yield _bad(f"a trailer {name!r}", chunked(trailer=name + b": " + value + b"\r\n"))
    yield _bad("a trailer over two lines", chunked(trailer=b"X: 1\r\n 2\r\n"))
    yield _bad("a trailer without a colon", chunked(trailer=b"X\r\n"))
    for mark in (b"0x%x", b"-%x", b"+%x", b" %x", b"%x ", b"%x\t", b"%xg", b"x%x", b"%x_0", b"%x.0", b"", b"\0%x"):
        yield _bad(f"a size {mark!r}", chunked(mark=mark))
    for size in (b"10000000000000000", b"fffffffffffffffffffffffffffff"):
        yield _bad(f"a size {size!r}", LINE + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\n" + make.body)
    endless = LINE + HOST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + make.body
    yield Vector("a size of 2**64 - 1", endless, (), INSIDE)
    yield _bad("no last chunk", chunked(last=b""))
    yield _bad("a chunk longer than its size", chunked(after=b"x\r\n"))
    yield _bad("a chunk that a bare LF ends", chunked(after=b"\n"))
    yield _bad("a chunk that a bare CR ends", chunked(after=b"\r"))
    yield _bad("a chunk that nothing ends", chunked(after=b""))
    yield _bad("a size that a bare LF ends", chunked().replace(b"64\r\n", b"64\n"))
    yield _bad("a chunk extension with a bare LF", chunked(mark=b"%x;\nxx"))
    yield _bad("a chunk extension with a bare CR", chunked(mark=b"%x;\rxx"))
    yield _bad("a chunk extension with a NUL", chunked(mark=b"%x;\0"))
    yield _bad("a last chunk that a bare LF ends", chunked(last=b"0\n"))
    # The bound is 64 KiB and two reads, the one with the end of what is before and the one with its own end.
    yield _bad("a chunk extension of 700 kB", chunked(mark=b"%x;" + b"a" * 700_000, size=1 << 20), 431)
    yield _bad("a trailer of 700 kB", chunked(trailer=b"X: " + b"a" * 700_000 + b"\r\n"), 431)


def _header_lines(make: Requests) -> Iterator[Vector]:
    plain = make.plain
    yield _bad("obs-fold", plain(b"X-Odd: a\r\n b\r\n"))
    yield _bad("obs-fold by a tab", plain(b"X-Odd: a\r\n\tb\r\n"))
    yield _bad("obs-fold of the first header", plain(host=b" X: a\r\n" + HOST))
    yield _bad("bare LFs", plain().replace(b"\r\n", b"\n", 5))
    yield _bad("one bare LF", plain(b"X-Odd: a\n"))
    yield _bad("a bare CR ends a line", plain(b"X-Odd: a\r"))
    yield _bad("CR CR LF", plain(b"X-Odd: a\r\r\n"))
    yield _bad("LF CR ends the head", plain().replace(b"\r\n\r\n", b"\r\n\n\r", 1))
    yield _bad("a bare LF ends the head", plain().replace(b"\r\n\r\n", b"\r\n\n", 1))
    yield _bad("a space before a colon", plain(b"X-Odd : 1\r\n"))
    yield _bad("a tab before a colon", plain(b"X-Odd\t: 1\r\n"))
    yield _bad("a header without a name", plain(b": 1\r\n"))
    yield _bad("a header without a colon", plain(b"X-Odd\r\n"))
    for name in (
        b"X Odd",
        b"X(Odd)",
        b"X-\xc3\xa4",
        b"X\0",
        b'"X"',
        b"X[1]",
        b"X{",
        b"X@",
        b"X,Y",
        b"X/Y",
        b"X;Y",
        b"X\x7f",
    ):
        yield _bad(f"a name {name!r}", plain(name + b": 1\r\n"))
    for value in (b"a\0b", b"\x01", b"a\x7f", b"\x1b[0m", b"a\x0bb"):
        yield _bad(f"a value {value!r}", plain(b"X: " + value + b"\r\n"))
    yield Vector("a value beyond ASCII", plain(b"X: \xe4\xff\r\n"))
    yield Vector("every mark of a token", plain(b"!#$%&'*+-.^_`|~aZ9: 1\r\n"), native=1)
    yield Vector("tabs and spaces around a value", plain(b"X:\t 1 2\t3 \t\r\nY:\r\n"), native=1)
    yield Vector("120 headers", plain(b"".join(b"X-%d: 1\r\n" % n for n in range(120))), native=1)
    yield _bad("130 headers", plain(b"".join(b"X-%d: 1\r\n" % n for n in range(130))), 431)
    yield Vector("a header of 15 kB", plain(b"X: " + b"a" * 15_000 + b"\r\n"), native=1)
    yield Vector("a header of 17 kB", plain(b"X: " + b"a" * 17_000 + b"\r\n"))
    yield Vector("a header of 60 kB", plain(b"X: " + b"a" * 60_000 + b"\r\n"))
    yield _bad("a header of 64 kB", plain(b"X: " + b"a" * 65_536 + b"\r\n"), 431)
    yield _bad("a header of 300 kB", plain(b"X: " + b"a" * 300_000 + b"\r\n"), 431)
    yield _bad("a name of 70 kB", plain(b"a" * 70_000 + b": 1\r\n"), 431)


def _request_lines(make: Requests) -> Iterator[Vector]:
    plain, target = make.plain, b"/v2/models/ranker/infer"

    def line(text: bytes, *statuses: int, end: str = OPEN, native: int = 0) -> Vector:
        return Vector(f"the line {text[:60]!r}", plain(line=text + b"\r\n"), statuses or (200,), end, native)

    for method in (b"post", b"Post", b"FETCH", b"POSTS", b"PO ST", b"", b"P\0ST", b"(POST)"):
        yield line(method + b" " + target + b" HTTP/1.1", 400, end=CLOSED)
    for method in (b"PUT", b"DELETE", b"PATCH", b"GET", b"OPTIONS", b"TRACE"):
        yield line(method + b" " + target + b" HTTP/1.1", 405)
    yield Vector("HEAD with a body", plain(line=LINE.replace(b"POST", b"HEAD")), (405,), is_head=True)
    yield line(b"CONNECT a:80 HTTP/1.1", 501, end=CLOSED)
    for text in (b"POST\t/", b" POST /", b"POST /v2 /", b"POST /v2\t/", b"POST /\0", b"POST \x80/"):
        yield line(text + b" HTTP/1.1", 400, end=CLOSED)
    for version in (b" ", b" HTTP", b" HTTP/", b" HTTP/1", b" HTTP/1.", b" HTTP/1.11", b" HTTP/11", b" HTTP/-1.1"):
        yield line(b"POST " + target + version, 400, end=CLOSED)
    for version in (
        b" http/1.1",
        b" HTTP/1.1 ",
        b" HTTP/1.1x",
        b" HTTP/1,1",
        b" HTCPCP/1.0",
        b" HTTP/1.1\0",
    ):
        yield line(b"POST " + target + version, 400, end=CLOSED)
    # RFC 9112, 3 lets a server take several spaces for one.
    yield line(b"POST  " + target + b" HTTP/1.1")
    yield line(b"POST " + target + b"  HTTP/1.1")
    for version in (b"", b" HTTP/0.9", b" HTTP/2.0", b" HTTP/1.2", b" HTTP/3.0"):
        yield line(b"POST " + target + version, 505, end=CLOSED)
    yield line(b"POST " + target + b" HTTP/1.0", end=CLOSED)
    yield Vector("HTTP/1.0 that stays", plain(b"Connection: keep-alive\r\n", line=LINE.replace(b"1.1", b"1.0")))
    yield _bad("a request of HTTP/0.9", b"GET /v2/health/live\r\n\r\n", 505)
    yield _bad("the beginning of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505)
    yield _bad("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)))
    yield line(b"POST http://a" + target + b" HTTP/1.1")
    yield line(b"POST http://b:8000" + target + b" HTTP/1.1")
    yield line(b"POST a:80 HTTP/1.1", 400, end=CLOSED)
    yield line(b"POST * HTTP/1.1", 404)
    yield line(b"POST infer HTTP/1.1", 400, end=CLOSED)
    yield line(b"POST " + target + b"?a=b HTTP/1.1")
    yield line(b"POST " + target + b"#f HTTP/1.1", 404)
    yield line(b"POST " + target + b"/ HTTP/1.1", 404)
    yield line(b"POST /%762/models/ranker/infer HTTP/1.1")
    yield line(b"POST /v2%2Fmodels/ranker/infer HTTP/1.1", 404)
    yield line(b"POST /v2/models/../models/ranker/infer HTTP/1.1", 404)
    yield line(b"POST //v2/models/ranker/infer HTTP/1.1", 404)
    yield line(b"POST /v2/models/ranker/versions/1/infer HTTP/1.1", native=1)
    yield line(b"POST /v2/models/ranker/versions/01/infer HTTP/1.1", 404)
    yield line(b"POST /v2/models/ranker/versions/9/infer HTTP/1.1", 404)
    yield line(b"POST /v2/models/nobody/infer HTTP/1.1", 404)
    yield line(b"POST /v2/models/" + b"a" * 17_000 + b"/infer HTTP/1.1", 414, end=CLOSED)
    yield Vector("an empty line before", b"\r\n" + plain())
    yield Vector("empty lines before", b"\r\n" * 5 + plain())
    yield Vector("a bare CR before", b"\r" + plain())
    yield Vector("a bare LF before", b"\n" + plain())
    yield _bad("a NUL before", b"\0" + plain())
    yield _bad("a space before", b" " + plain())


def _hosts(make: Requests) -> Iterator[Vector]:
    plain = make.plain
    yield _bad("no Host", plain(host=b""))
    yield _bad("two equal Hosts", plain(HOST))
    yield _bad("two unequal Hosts", plain(b"host: b\r\n"))
    for value in (b"a b", b"a/b", b"a@b", b"a, b", b"a:b", b"a:80:80", b"[::1", b"http://a", b"a\tb", b"a\x80", b"a?b"):
        yield _bad(f"a Host {value!r}", plain(host=b"Host: " + value + b"\r\n"))
    for value, native in (
        (b"a:8000", 1),
        (b"A.example", 1),
        (b"127.0.0.1:1", 1),
        (b"a_b", 1),
        (b"a:", 1),
        (b"[::1]:80", 0),
    ):
        yield Vector(f"a Host {value!r}", plain(host=b"hOST:" + value + b"\r\n"), native=native)
    yield Vector("tabs around a Host", plain(host=b"Host:\ta\t\r\n"), native=1)
    yield Vector("an empty Host", plain(host=b"Host:\r\n"))
    yield Vector("a Host with an encoded letter", plain(host=b"Host: %61\r\n"))
    yield Vector("HTTP/1.0 without Host", plain(line=LINE.replace(b"1.1", b"1.0"), host=b""), end=CLOSED)


def _options(make: Requests) -> Iterator[Vector]:
    plain = make.plain
    yield Vector("Connection: keep-alive", plain(b"Connection: keep-alive\r\n"), native=1)
    yield Vector("Connection: close", plain(b"Connection: close\r\n"), end=CLOSED)
    yield Vector("Connection: CLOSE in a list", plain(b"Connection: x, CLOSE\r\n"), end=CLOSED)
    yield Vector("two Connections", plain(b"Connection: keep-alive\r\nConnection: close\r\n"), end=CLOSED)
    yield Vector("Connection: content-length", plain(b"Connection: content-length, transfer-encoding\r\n"))
    yield Vector("Keep-Alive", plain(b"Keep-Alive: timeout=5, max=1\r\n"), native=1)
    for name in (b"TE: trailers", b"Trailer: X", b"Upgrade: h2c", b"Content-Encoding: identity"):
        yield Vector(name.decode(), plain(name + b"\r\n"))
    for protocol in (b"h2c", b"websocket", b"TLS/1.0", b"foo/2"):
        offer = b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\n"
        yield Vector(f"an offer of {protocol.decode()}", plain(offer))
    hidden = LINE + HOST + b"Content-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN
    yield Vector("a request in a body", hidden, (400,))
    offer = b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN)
    yield Vector("a request in the body of an offer", LINE + HOST + offer + HIDDEN, (400,))
    yield Vector("a request in the body of GET", LIVE[:-2] + b"Content-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN)
    yield Vector("Expect: 100-continue", plain(b"Expect: 100-continue\r\n"), (100, 200))
    yield Vector(
        "Expect: 100-CONTINUE in chunks",
        make.chunked(b"Expect: 100-CONTINUE\r\nTransfer-Encoding: chunked\r\n"),
        (100, 200),
    )
    yield Vector("another Expect", plain(b"Expect: tea\r\n"))
    packed = gzip.compress(make.body)
    for line in (b"", make.json_length):
        what = "with" if line else "without"
        data = LINE + HOST + line + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed
        yield Vector(f"a gzip body {what} the length of its JSON", data, (200,) if line else (400,))
    yield Vector("gzip that is none", plain(b"Content-Encoding: gzip\r\n"), (400,))
    yield Vector("an unknown encoding", plain(b"Content-Encoding: br\r\n"), (415,))
    yield Vector("a small answer may be compressed", plain(b"Accept-Encoding: gzip\r\n"), native=1)
    for value in (b"-1", b"+5", b"x", b"", b"999999", b"1_0", b"0x5"):
        wrong = make.plain().replace(make.json_length, b"Inference-Header-Content-Length: " + value + b"\r\n")
        yield Vector(f"a length of the JSON {value!r}", wrong, (400,))
    tabs = make.plain().replace(make.json_length, make.json_length.replace(b": ", b":\t").replace(b"\r\n", b" \t\r\n"))
    yield Vector("tabs around the length of the JSON", tabs, native=1)
    yield _bad("two lengths of the JSON", plain(make.json_length))
    yield _bad("two Authorizations", plain(b"Authorization: a\r\nAuthorization: b\r\n"))
    for name in (
        b"X-HTTP-Method-Override: DELETE",
        b"X-Original-URL: /v2/repository/index",
        b"Proxy-Connection: keep-alive",
    ):
        yield Vector(name.decode(), plain(name + b"\r\n"), native=int(not name.startswith(b"Proxy")))
    yield Vector("X-Forwarded-For", plain(b"X-Forwarded-For: 10.0.0.1\r\nForwarded: for=10.0.0.1\r\n"), native=1)


def _sequences(make: Requests) -> Iterator[Vector]:
    plain, one = make.plain(), b"Content-Length: %d\r\n\r\n" % len(JSON) + JSON
    by_json = LINE + HOST + one
    yield Vector("five plain ones", plain * 5, (200,) * 5, native=5)
    yield Vector(
        "plain, GET, plain, chunks, plain", plain + LIVE + plain + make.chunked() + plain, (200,) * 5, native=1
    )
    yield Vector("GET, plain, GET, plain", (LIVE + plain) * 2, (200,) * 4)
    yield Vector("JSON and plain in turns", (plain + by_json) * 4, (200, 400) * 4, native=1)
    smuggled = plain + make.plain(b"Transfer-Encoding: chunked\r\n") + plain
    yield Vector("plain, then CL.TE, then plain", smuggled, (200, 400), CLOSED, 1)
    closes = plain + make.plain(b"Connection: close\r\n") + plain
    yield Vector("a close between plain ones", closes, (200, 200), CLOSED, 1)
    yield Vector("plain, then rubbish", plain + b"\xff" * 100, (200, 400), CLOSED, 1)
