"""Collects the head of a request while it arrives: bounded, and refused where it could have two meanings."""

from __future__ import annotations

import re
import urllib.parse

import httptools

from storage.errors import EmberlineError, InvalidInput, Unsupported

MAX_HEADER_BYTES = 64 << 10
MAX_HEADERS = 128
MAX_TARGET_BYTES = 16 << 10
# If one of these came twice, a reader of the first and a reader of the last would understand different requests.
_ONCE = frozenset(
    (b"authorization", b"content-encoding", b"host", b"inference-header-content-length", b"transfer-encoding")
)
_FRAMING = frozenset((b"content-length", b"transfer-encoding"))
# uri-host [ ":" port ] of RFC 9110, 7.2; it may be empty.
_HOST = re.compile(rb"(?:[\w.~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?", re.ASCII)


class RequestHead:
    """Holds the target and the headers of a request."""

    __slots__ = ("_count", "_size", "_twice", "framing", "headers", "url")

    def __init__(self) -> None:
        self.url = b""
        #: Values by name in lower case; the last one of a header that comes twice.
        self.headers: dict[bytes, bytes] = {}
        #: The header lines that say how long the body is.
        self.framing = b""
        self._twice = b""
        self._count = 0
        self._size = 0

    def add_header(self, name: bytes, value: bytes) -> None:
        """Adds one header."""
        name = name.lower()
        headers = self.headers
        if name in headers and name in _ONCE:
            self._twice = name
        if name in _FRAMING:
            self.framing += name + b": " + value + b"\r\n"
        headers[name] = value.strip(b" \t")  # the parser leaves tabs behind a value
        self._count += 1
        self._size += len(name) + len(value) + 4

    @property
    def size(self) -> int:
        """Returns the bytes of the target and the headers."""
        return self._size + len(self.url)

    @property
    def expects_continue(self) -> bool:
        """Returns whether the client waits for "100 Continue" before it sends the body."""
        headers = self.headers
        if headers.get(b"expect", b"").lower() != b"100-continue":
            return False
        return b"transfer-encoding" in headers or headers.get(b"content-length", b"").strip(b"0") != b""

    def target(self) -> tuple[str, bytes]:
        """Returns path and query. An encoded slash stays encoded: it belongs to a name and does not separate segments.

        Raises InvalidInput if the target is not a URL.
        """
        url = self.url
        if b"?" not in url and b"%" not in url and url.startswith(b"/"):
            return url.decode("latin-1"), b""
        try:
            parsed = httptools.parse_url(url)
        except httptools.HttpParserInvalidURLError:
            raise InvalidInput("the target of the request is no URL", field="request") from None
        path = (parsed.path or b"/").decode("latin-1")
        if "%" in path:
            path = "/".join([urllib.parse.unquote(part).replace("/", "%2F") for part in path.split("/")])
        return path, parsed.query or b""

    def fault(self, version: str) -> tuple[EmberlineError, int] | None:
        """Checks the complete head; returns the error and its HTTP status, or None. version: of HTTP."""
        if version not in ("1.0", "1.1"):
            return InvalidInput(f"HTTP/{version} is not spoken here; send HTTP/1.1", field="request"), 505
        if len(self.url) > MAX_TARGET_BYTES:
            return long_target(), 414
        if self.size > MAX_HEADER_BYTES:
            return long_head(), 431
        if self._count > MAX_HEADERS:
            return InvalidInput(f"there are over {MAX_HEADERS} headers", field="headers"), 431
        if self._twice:
            return InvalidInput(f"the header {self._twice.decode()} came twice", field="headers"), 400
        host = self.headers.get(b"host")
        if host is None:
            if version == "1.1":
                return InvalidInput(
                    "the header Host is missing, which every request of HTTP/1.1 has", field="host"
                ), 400
        elif not _HOST.fullmatch(host):
            return InvalidInput(f"the header Host is no host: {host[:40].decode('latin-1')!r}", field="host"), 400
        coding = self.headers.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            return Unsupported(
                f"the Transfer-Encoding {coding[:40].decode('latin-1')!r} is not supported; send 'chunked', or a "
                "Content-Length"
            ), 501
        if version == "1.0" and coding is not None:
            return InvalidInput(
                "HTTP/1.0 has no Transfer-Encoding; send Content-Length", field="transfer-encoding"
            ), 400
        return None


def long_target() -> InvalidInput:
    """Returns the error for a target that is too long."""
    return InvalidInput(f"the target of the request is over {MAX_TARGET_BYTES} bytes", field="request")


def long_head() -> InvalidInput:
    """Returns the error for a head, trailers or chunk extensions that are too long."""
    return InvalidInput(f"the head of the request, or its trailers, are over {MAX_HEADER_BYTES} bytes", field="headers")


def unreadable(head: RequestHead | None, error: httptools.HttpParserError | None) -> tuple[InvalidInput, int]:
    """Returns the error and the HTTP status for input that the parser cannot read any further.

    head: the one that was being read; None after it. error: the parser's; None where the input was too long.
    """
    if head is not None and len(head.url) > MAX_TARGET_BYTES:
        return long_target(), 414
    if error is None:
        return long_head(), 431
    # The parser reports the preface of HTTP/2 as a pause.
    status = 505 if "HTTP version" in str(error) or "PRI" in str(error) else 400
    return InvalidInput(f"this is not HTTP/1.1: {error}", field="request"), status
