"""The head of a request while it arrives: bounded, and with one meaning."""

from __future__ import annotations

import urllib.parse

import httptools

from storage.errors import EmberlineError, InvalidInput

MAX_HEADER_BYTES = 64 << 10
MAX_HEADERS = 128
# Twice in a request, they say two things to whoever reads the first or the last.
_ONCE = frozenset((b"authorization", b"content-encoding", b"inference-header-content-length"))
_FRAMING = frozenset((b"content-length", b"transfer-encoding"))


class RequestHead:
    """headers: names in lower case; of one that comes twice, the last. framing: its lines of how long the body is."""

    __slots__ = ("_count", "_size", "_twice", "framing", "headers", "url")

    def __init__(self) -> None:
        self.url = b""
        self.headers: dict[bytes, bytes] = {}
        self.framing = b""
        self._twice = b""
        self._count = 0
        self._size = 0

    def add_url(self, url: bytes) -> None:
        """A piece of its target."""
        self.url += url

    def add_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        name = name.lower()
        headers = self.headers
        if name in headers and name in _ONCE:
            self._twice = name
        if name in _FRAMING:
            self.framing += name + b": " + value + b"\r\n"
        headers[name] = value
        self._count += 1
        self._size += len(name) + len(value) + 4

    def target(self) -> tuple[str, bytes]:
        """Path and query."""
        url = self.url
        if b"?" not in url and b"%" not in url and url.startswith(b"/"):
            return url.decode("latin-1"), b""
        parsed = httptools.parse_url(url)
        path = (parsed.path or b"/").decode("latin-1")
        return (urllib.parse.unquote(path) if "%" in path else path), parsed.query or b""

    def fault(self) -> tuple[EmberlineError, int] | None:
        """What is wrong with it now that it is whole, and the HTTP status for that."""
        if self._size + len(self.url) > MAX_HEADER_BYTES:
            return long_head(), 431
        if self._count > MAX_HEADERS:
            return InvalidInput(f"there are over {MAX_HEADERS} headers", field="headers"), 431
        if self._twice:
            return InvalidInput(f"the header {self._twice.decode()} came twice", field="headers"), 400
        return None


def long_head() -> InvalidInput:
    """What is said of one that is too long, or of trailers and chunk extensions that are."""
    return InvalidInput(f"the head of the request, or its trailers, are over {MAX_HEADER_BYTES} bytes", field="headers")
