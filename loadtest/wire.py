"""Sends whole HTTP requests over a kept connection and reads the responses, with little processor time.

What a generator spends on a request delays the others, and where it shares the server's cores it slows the server down.
locust's HTTP users build each request anew and keep the response; here both are bytes that are there already.
"""

from __future__ import annotations

import re
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

_READ_BYTES = 256 << 10
# A response's head at most.
_HEAD_BYTES = 64 << 10
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
_CLOSES = re.compile(rb"\r\nconnection: *close\r\n", re.IGNORECASE)
# Bytes of a refusal that are kept as its reason.
_REASON_BYTES = 2000


@dataclass(frozen=True)
class Tls:
    """Files that HTTPS needs: the authority that signed the server's certificate, and a certificate of one's own."""

    ca: str = ""
    cert: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """Returns the context. Raises OSError for a file that cannot be used."""
        context = ssl.create_default_context(cafile=self.ca or None)
        if self.cert:
            context.load_cert_chain(self.cert, self.key or None)
        return context


@dataclass(frozen=True)
class Response:
    """A response: its status, the bytes of its body, and of a refusal the begin of the body."""

    status: int
    length: int
    reason: str = ""


class HttpConnection:
    """One connection of HTTP/1.1, one request at a time. Opens itself, and again after an error."""

    def __init__(self, url: str, tls: Tls, timeout_s: float) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._context = tls.context() if parts.scheme == "https" else None
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None

    def ask(self, request: bytes) -> Response:
        """Sends a request and returns the response.

        A connection that the server closed before it answered is opened again, once. Raises OSError.
        """
        is_kept = self._socket is not None
        try:
            return self._ask(request)
        except (ConnectionError, ssl.SSLError):
            self.close()
            if not is_kept:
                raise
        except OSError:
            self.close()
            raise
        try:
            return self._ask(request)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Closes the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, request: bytes) -> Response:
        if self._socket is None:
            plain = socket.create_connection((self._host, self._port), timeout=self._timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain
            if self._context is not None:
                self._socket = self._context.wrap_socket(plain, server_hostname=self._host)
        self._socket.sendall(request)
        return self._read(self._socket)

    def _read(self, end: socket.socket) -> Response:
        head = b""
        while (stop := head.find(b"\r\n\r\n")) < 0:
            part = end.recv(_READ_BYTES)
            if not part:
                raise ConnectionResetError("the server closed the connection")
            head += part
            if len(head) > _HEAD_BYTES + _READ_BYTES:
                raise OSError("the response has no end of its headers")
        begin, found = _STATUS.match(head), _LENGTH.search(head, 0, stop + 2)
        if begin is None:
            raise OSError("the response is no HTTP/1.1")
        if found is None:
            raise OSError("the response does not say its length")
        length, status = int(found[1]), int(begin[1])
        body = [head[stop + 4 :]]
        left = length - len(body[0])
        while left > 0:
            part = end.recv(_READ_BYTES)
            if not part:
                raise OSError("the server closed the connection within a response")
            left -= len(part)
            if status != 200:
                body.append(part)
        if _CLOSES.search(head, 0, stop + 2):
            self.close()
        if status == 200:
            return Response(status, length)
        return Response(status, length, b"".join(body)[:_REASON_BYTES].decode(errors="replace"))


def request_begin(url: str, model: str, headers: dict[str, str]) -> bytes:
    """Returns the head of inference requests, up to the headers that differ. model: as it stands in a path."""
    parts = urlsplit(url)
    lines = [
        f"POST {parts.path.rstrip('/')}/v2/models/{model}/infer HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, ""]).encode()


def whole_request(begin: bytes, body: bytes, json_bytes: int = 0) -> bytes:
    """Returns a request. json_bytes: length of the JSON part of a binary body; 0 for another body."""
    inference = b"Inference-Header-Content-Length: %d\r\n" % json_bytes if json_bytes else b""
    return b"%bContent-Length: %d\r\n%b\r\n%b" % (begin, len(body), inference, body)
