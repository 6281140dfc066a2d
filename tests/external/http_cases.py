"""Requests for the HTTP campaign: a usual one, and the changes to it, each with what the RFCs ask for.

A case is one request with one to three changes, and behind it, on the same connection, a second one that is usual. A
change says which statuses its first request may have, and whether the second one may, must or must not be answered.
"""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

JSON = b'{"inputs":[{"name":"in_A","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
# A server that took the body for a request would find one here.
HIDDEN = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n"
NEXT = b"GET /v2/health/live?next HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
INFER, LIVE = b"/v2/models/echo/infer", b"/v2/health/live"

BAD = frozenset({400})
MUST, MAY, MUST_NOT = "must", "may", "must not"


@dataclass(frozen=True)
class Draft:
    """A request before it is written.

    framing: takes the content, returns the header lines of the framing and the body.
    line_end: ends the lines of the head.
    """

    method: bytes = b"POST"
    target: bytes = INFER
    version: bytes = b"HTTP/1.1"
    host: bytes = b"Host: h\r\n"
    headers: bytes = b"Content-Type: application/json\r\n"
    content: bytes = JSON
    framing: Callable[[bytes], tuple[bytes, bytes]] = lambda content: (
        b"Content-Length: %d\r\n" % len(content),
        content,
    )
    before: bytes = b""
    line_end: bytes = b"\r\n"
    pieces: int = 1

    def written(self) -> bytes:
        """Returns the bytes of the request as they are sent."""
        framing, body = self.framing(self.content)
        line = b" ".join(part for part in (self.method, self.target, self.version) if part) + b"\r\n"
        head = (self.before + line + self.host + self.headers + framing + b"\r\n").replace(b"\r\n", self.line_end)
        return head + body


@dataclass(frozen=True)
class Change:
    """One thing that is unusual about a request."""

    name: str
    #: Of several changes to one part, a case takes only one.
    part: str
    make: Callable[[Draft], Draft]
    #: Statuses that the first request may be answered with; None where the change makes no difference to them.
    statuses: frozenset[int] | None = None
    #: Says whether the request that follows must, may or must not be answered.
    next: str = MUST
    #: The section of an RFC that says so.
    rfc: str = ""


@dataclass(frozen=True)
class Case:
    """A request with its changes.

    statuses: any one of them may be the status of the first answer.
    next: see Change.
    """

    changes: tuple[Change, ...]
    draft: Draft
    statuses: frozenset[int] = field(default=frozenset({200}))
    next: str = MUST

    @property
    def name(self) -> str:
        """Names the changes, joined by " + "."""
        return " + ".join(change.name for change in self.changes) or "usual"


def _set(**parts: object) -> Callable[[Draft], Draft]:
    return lambda draft: replace(draft, **parts)  # type: ignore[arg-type]


def _on_target(change: Callable[[bytes], bytes]) -> Callable[[Draft], Draft]:
    return lambda draft: replace(draft, target=change(draft.target))


def _add(line: bytes) -> Callable[[Draft], Draft]:
    return lambda draft: replace(draft, headers=draft.headers + line)


def _chunks(
    size: int, extension: bytes = b"", trailer: bytes = b"", *, upper: bool = False, zeros: bytes = b""
) -> Callable[[Draft], Draft]:
    def frame(content: bytes) -> tuple[bytes, bytes]:
        pieces = [content[at : at + size] for at in range(0, len(content), size)]
        text = "%X" if upper else "%x"
        body = b"".join(
            zeros + (text % len(piece)).encode() + extension + b"\r\n" + piece + b"\r\n" for piece in pieces
        )
        return b"Transfer-Encoding: chunked\r\n", body + b"0\r\n" + trailer + b"\r\n"

    return _set(framing=frame)


def _framed(lines: bytes, body: bytes | None = None) -> Callable[[Draft], Draft]:
    """Sets the framing.

    lines: header lines, with %d for the length of the content.
    body: replaces the content.
    """
    return _set(framing=lambda content: (lines.replace(b"%d", b"%d" % len(content)), content if body is None else body))


def _get(draft: Draft) -> Draft:
    return replace(draft, method=b"GET", target=LIVE, headers=b"", content=b"", framing=lambda content: (b"", b""))


def _encoded(encoding: bytes, encode: Callable[[bytes], bytes]) -> Callable[[Draft], Draft]:
    line = b"Content-Encoding: %s\r\n" % encoding
    return lambda draft: replace(draft, headers=draft.headers + line, content=encode(draft.content))


def _same(content: bytes) -> bytes:
    return content


def _gone(draft: Draft) -> Draft:
    return replace(draft, host=b"")


CHANGES: tuple[Change, ...] = (
    Change("GET", "method", _get),
    Change("HEAD", "method", lambda draft: replace(_get(draft), method=b"HEAD"), rfc="9110 9.3.2"),
    Change("PUT", "method", _set(method=b"PUT"), frozenset({405}), MAY, "9110 15.5.6"),
    Change("DELETE", "method", _set(method=b"DELETE"), frozenset({405}), MAY, "9110 15.5.6"),
    Change("OPTIONS", "method", lambda draft: replace(_get(draft), method=b"OPTIONS"), frozenset({200, 204, 405}), MAY),
    Change("a method in small letters", "method", _set(method=b"post"), frozenset({400, 405, 501}), MAY, "9110 9.1"),
    Change("an unknown method", "method", _set(method=b"FETCH"), frozenset({400, 405, 501}), MAY, "9110 9.1"),
    Change("CONNECT", "method", _set(method=b"CONNECT", target=b"h:80"), frozenset({400, 405, 501}), MAY, "9110 9.3.6"),
    Change("a query", "target", _on_target(lambda target: target + b"?a=b&c=%20"), rfc="9110 4.1"),
    Change("an absolute target", "target", _on_target(lambda target: b"http://h" + target), rfc="9112 3.2.2"),
    Change(
        "an encoded letter", "target", _on_target(lambda target: target.replace(b"/v2", b"/%762")), rfc="9110 4.2.3"
    ),
    Change(
        "an encoded slash",
        "target",
        _on_target(lambda target: b"/v2%2F" + target.removeprefix(b"/v2/")),
        frozenset({404}),
        MAY,
        "3986 2.2",
    ),
    Change("an unknown path", "target", _set(target=b"/nowhere"), frozenset({404}), MAY),
    Change(
        "a target of 20 kB",
        "target",
        _on_target(lambda target: target + b"?" + b"a" * 20_000),
        frozenset({200, 400, 414, 431}),
        MAY,
        "9110 15.5.15",
    ),
    Change(
        "a target of 100 kB",
        "target",
        _on_target(lambda target: target + b"?" + b"a" * 100_000),
        frozenset({200, 400, 414, 431}),
        MAY,
        "9110 15.5.15",
    ),
    Change("a star", "target", _set(target=b"*"), frozenset({400, 404}), MAY, "9112 3.2.4"),
    Change("a target without a slash", "target", _set(target=b"infer"), frozenset({400, 404}), MAY, "9112 3.2"),
    Change("a space in the target", "target", _on_target(lambda target: target + b"?a b"), BAD, MUST_NOT, "9112 3.2"),
    Change("HTTP/1.0", "version", _set(version=b"HTTP/1.0"), None, MAY, "9112 9.3"),
    Change("HTTP/0.9", "version", _set(version=b"HTTP/0.9"), frozenset({400, 505}), MUST_NOT, "9110 15.6.6"),
    Change("HTTP/2.0", "version", _set(version=b"HTTP/2.0"), frozenset({400, 505}), MUST_NOT, "9110 15.6.6"),
    Change("HTTP/1.7", "version", _set(version=b"HTTP/1.7"), frozenset({200, 400, 505}), MAY, "9110 2.5"),
    Change("no version", "version", _set(version=b""), frozenset({400, 505}), MUST_NOT, "9112 3"),
    Change("http/1.1", "version", _set(version=b"http/1.1"), frozenset({400, 505}), MUST_NOT, "9112 2.3"),
    Change("no Host", "host", _gone, BAD, MAY, "9112 3.2"),
    Change("two Hosts", "host", _set(host=b"Host: a\r\nHost: b\r\n"), BAD, MAY, "9112 3.2"),
    Change("a Host with a path", "host", _set(host=b"Host: a/b\r\n"), BAD, MAY, "9112 3.2"),
    Change("a Host with a port", "host", _set(host=b"Host: h:8000\r\n"), rfc="9110 7.2"),
    Change("an empty Host", "host", _set(host=b"Host:\r\n"), frozenset({200, 400}), MAY, "9112 3.2"),
    Change("an IPv6 Host", "host", _set(host=b"hOST: [::1]:80\r\n"), rfc="9110 7.2"),
    Change("one chunk", "framing", _chunks(10_000), rfc="9112 7.1"),
    Change("chunks of three bytes", "framing", _chunks(3), rfc="9112 7.1"),
    Change("chunks with extensions", "framing", _chunks(20, b';a=b;c="d e"'), rfc="9112 7.1.1"),
    Change("chunks with a trailer", "framing", _chunks(20, trailer=b"X-Sum: 1\r\n"), rfc="9112 7.1.2"),
    Change(
        "a trailer Content-Length",
        "framing",
        _chunks(20, trailer=b"Content-Length: 5\r\n"),
        frozenset({200, 400}),
        MAY,
        "9110 6.5.1",
    ),
    Change("sizes in capitals", "framing", _chunks(30, upper=True), rfc="9112 7.1"),
    Change("sizes with zeros before them", "framing", _chunks(30, zeros=b"000"), rfc="9112 7.1"),
    Change("a space behind the size", "framing", _chunks(30, b" "), frozenset({200, 400}), MAY, "9112 7.1"),
    Change(
        "a size that is none",
        "framing",
        _framed(b"Transfer-Encoding: chunked\r\n", b"xyz\r\n" + JSON + b"\r\n0\r\n\r\n"),
        BAD,
        MUST_NOT,
        "9112 7.1",
    ),
    Change(
        "a size with 0x",
        "framing",
        _framed(b"Transfer-Encoding: chunked\r\n", b"0x4d\r\n" + JSON + b"\r\n0\r\n\r\n"),
        BAD,
        MUST_NOT,
        "9112 7.1",
    ),
    Change(
        "a negative size",
        "framing",
        _framed(b"Transfer-Encoding: chunked\r\n", b"-4d\r\n" + JSON + b"\r\n0\r\n\r\n"),
        BAD,
        MUST_NOT,
        "9112 7.1",
    ),
    Change(
        "a size of 2**64",
        "framing",
        _framed(b"Transfer-Encoding: chunked\r\n", b"10000000000000000\r\n" + JSON + b"\r\n0\r\n\r\n"),
        BAD | {413},
        MUST_NOT,
        "9112 7.1",
    ),
    Change(
        "a chunk longer than said",
        "framing",
        _framed(b"Transfer-Encoding: chunked\r\n", b"4\r\n" + JSON + b"\r\n0\r\n\r\n"),
        BAD,
        MUST_NOT,
        "9112 7.1",
    ),
    Change(
        "equal lengths",
        "framing",
        _framed(b"Content-Length: %d\r\nContent-Length: %d\r\n"),
        frozenset({200, 400}),
        MAY,
        "9112 6.3",
    ),
    Change(
        "unequal lengths", "framing", _framed(b"Content-Length: %d\r\nContent-Length: 5\r\n"), BAD, MUST_NOT, "9112 6.3"
    ),
    Change(
        "lengths in a list", "framing", _framed(b"Content-Length: %d, %d\r\n"), frozenset({200, 400}), MAY, "9112 6.3"
    ),
    Change("a length with a plus", "framing", _framed(b"Content-Length: +%d\r\n"), BAD, MUST_NOT, "9110 8.6"),
    Change("a negative length", "framing", _framed(b"Content-Length: -1\r\n"), BAD, MUST_NOT, "9110 8.6"),
    Change("a length in hex", "framing", _framed(b"Content-Length: 0x4d\r\n"), BAD, MUST_NOT, "9110 8.6"),
    Change(
        "a length of 10**30",
        "framing",
        _framed(b"Content-Length: 1" + b"0" * 30 + b"\r\n"),
        BAD | {413},
        MUST_NOT,
        "9110 8.6",
    ),
    Change("an empty length", "framing", _framed(b"Content-Length:\r\n"), BAD, MUST_NOT, "9110 8.6"),
    Change(
        "both framings",
        "framing",
        _framed(b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", b"4d\r\n" + JSON + b"\r\n0\r\n\r\n"),
        frozenset({200, 400}),
        MUST_NOT,
        "9112 6.1",
    ),
    Change("an unknown coding", "framing", _framed(b"Transfer-Encoding: pack\r\n"), BAD | {501}, MUST_NOT, "9112 6.1"),
    Change(
        "chunked not the last",
        "framing",
        _framed(b"Transfer-Encoding: chunked, gzip\r\n"),
        BAD | {501},
        MUST_NOT,
        "9112 6.3",
    ),
    Change(
        "chunked twice",
        "framing",
        _framed(b"Transfer-Encoding: chunked, chunked\r\n", b"4d\r\n" + JSON + b"\r\n0\r\n\r\n"),
        BAD | {501},
        MUST_NOT,
        "9112 6.1",
    ),
    Change(
        "gzip, chunked",
        "framing",
        _framed(b"Transfer-Encoding: gzip, chunked\r\n", b"4d\r\n" + JSON + b"\r\n0\r\n\r\n"),
        BAD | {501},
        MAY,
        "9112 6.1",
    ),
    Change("identity", "framing", _framed(b"Transfer-Encoding: identity\r\n"), BAD | {501}, MUST_NOT, "9112 6.1"),
    Change("no framing", "framing", _framed(b"", b""), BAD, rfc="9112 6.3"),
    Change("gzip", "encoding", _encoded(b"gzip", gzip.compress), rfc="9110 8.4"),
    Change("deflate", "encoding", _encoded(b"Deflate", zlib.compress), rfc="9110 8.4"),
    Change("identity encoding", "encoding", _encoded(b"identity", _same), rfc="9110 8.4"),
    Change("an unknown encoding", "encoding", _encoded(b"br", _same), frozenset({415}), MAY, "9110 15.5.16"),
    Change("gzip that is none", "encoding", _encoded(b"gzip", _same), BAD, MAY, "9110 8.4"),
    Change("Expect: 100-continue", "expect", _add(b"Expect: 100-continue\r\n"), rfc="9110 10.1.1"),
    Change("another Expect", "expect", _add(b"Expect: tea\r\n"), frozenset({200, 417}), MAY, "9110 10.1.1"),
    Change("Connection: close", "connection", _add(b"Connection: close\r\n"), None, MUST_NOT, "9112 9.6"),
    Change("Connection: keep-alive", "connection", _add(b"Connection: keep-alive\r\n"), rfc="9112 9.3"),
    Change(
        "an offer of h2c",
        "connection",
        _add(b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\n"),
        rfc="9110 7.8",
    ),
    Change(
        "an offer of websocket",
        "connection",
        _add(
            b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        ),
        rfc="9110 7.8",
    ),
    Change("an offer of foo", "connection", _add(b"Connection: upgrade\r\nUpgrade: foo/2\r\n"), rfc="9110 7.8"),
    Change("Upgrade without Connection", "connection", _add(b"Upgrade: h2c\r\n"), rfc="9110 7.8"),
    Change("a space before a colon", "header", _add(b"X-Odd : 1\r\n"), BAD, MUST_NOT, "9112 5.1"),
    Change(
        "a header over two lines",
        "header",
        _add(b"X-Odd: 1\r\n 2\r\n"),
        frozenset({200, 400}),
        MAY,
        "9112 5.2",
    ),
    Change("NUL in a header", "header", _add(b"X-Odd: a\0b\r\n"), frozenset({200, 400}), MAY, "9110 5.5"),
    Change("a bare CR in a header", "header", _add(b"X-Odd: a\rb\r\n"), frozenset({200, 400}), MAY, "9112 2.2"),
    Change("a header without a name", "header", _add(b": 1\r\n"), BAD, MUST_NOT, "9110 5.1"),
    Change("a header without a colon", "header", _add(b"X-Odd\r\n"), BAD, MUST_NOT, "9112 5"),
    Change("a name that is no token", "header", _add(b"X(Odd): 1\r\n"), BAD, MUST_NOT, "9110 5.1"),
    Change(
        "letters beyond ASCII in a header",
        "header",
        _add(b"X-Odd: \xe4\xff\r\n"),
        frozenset({200, 400}),
        MAY,
        "9110 5.5",
    ),
    Change("tabs around a value", "header", _add(b"X-Odd:\t 1 \t\r\n"), rfc="9110 5.5"),
    Change(
        "150 headers",
        "header",
        _add(b"".join(b"X-%d: 1\r\n" % n for n in range(150))),
        frozenset({200, 400, 431}),
        MAY,
        "6585 5",
    ),
    Change(
        "a header of 20 kB",
        "header",
        _add(b"X-Odd: " + b"a" * 20_000 + b"\r\n"),
        frozenset({200, 400, 431}),
        MAY,
        "6585 5",
    ),
    Change(
        "a header of 100 kB",
        "header",
        _add(b"X-Odd: " + b"a" * 100_000 + b"\r\n"),
        frozenset({200, 400, 431}),
        MAY,
        "6585 5",
    ),
    Change("an empty line before", "line", _set(before=b"\r\n"), rfc="9112 2.2"),
    Change("bare line feeds", "line", _set(line_end=b"\n"), frozenset({200, 400}), MAY, "9112 2.2"),
    Change("a hidden request for a body", "content", _set(content=HIDDEN), BAD, MAY),
    Change("in five pieces", "pieces", _set(pieces=5)),
    Change("in fifty pieces", "pieces", _set(pieces=50)),
)
# GET, HEAD, OPTIONS and CONNECT are sent without a body: changes to these parts have no meaning beside them.
_OF_A_BODY = frozenset({"framing", "encoding", "content"})


def cases(count: int, seed: int) -> Iterator[Case]:
    """Yields the usual request, every change alone, and then two and three at a time, drawn anew for each seed."""
    yield Case((), Draft())
    for change in CHANGES:
        yield case(change)
    rng = random.Random(seed)
    made = 1 + len(CHANGES)
    seen: set[str] = set()
    while made < count:
        picked = rng.sample(CHANGES, rng.choice((2, 2, 3)))
        parts = [change.part for change in picked]
        bodiless = any(change.name in ("GET", "HEAD", "OPTIONS", "CONNECT") for change in picked)
        if len(set(parts)) < len(parts) or (bodiless and _OF_A_BODY & set(parts)):
            continue
        # Applied in the order of the list, so that a changed target or body stays whatever the method has set.
        found = case(*sorted(picked, key=CHANGES.index))
        if found.name not in seen:
            seen.add(found.name)
            made += 1
            yield found


def case(*changes: Change) -> Case:
    """Returns one request with these changes; it may be answered with any status that one of them allows."""
    draft = Draft()
    for change in changes:
        draft = change.make(draft)
    given = [change.statuses for change in changes if change.statuses is not None]
    refusals = frozenset().union(*given) if given else frozenset({200})
    # A mistake that is found first hides the others; one that may be accepted leaves them visible.
    if given and all(200 in statuses for statuses in given):
        refusals |= {200}
    elif len(given) > 1:
        refusals -= {200} if any(200 not in statuses for statuses in given) else set()
    kinds = {change.next for change in changes}
    # Where something else is refused first, the server may not have seen yet what has to end the connection.
    following = MUST_NOT if MUST_NOT in kinds else MAY if MAY in kinds else MUST
    names = {change.name for change in changes}
    if "HTTP/1.0" in names:
        refusals, following = _of_1_0(names, refusals, following)
    return Case(changes, draft, refusals, following)


def _of_1_0(names: set[str], statuses: frozenset[int], following: str) -> tuple[frozenset[int], str]:
    """Adapts a case to HTTP/1.0, which has no chunks, needs no Host, and closes unless it is asked to stay open."""
    if any(change.name in names and change.part == "framing" and _has_codings(change) for change in CHANGES):
        return statuses | BAD, MUST_NOT
    if names & {"no Host"}:
        statuses |= {200}
    return statuses, MUST_NOT if following == MUST_NOT else MAY


def _has_codings(change: Change) -> bool:
    return b"Transfer-Encoding" in change.make(Draft()).written()
