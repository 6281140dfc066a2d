"""Speaks HTTP/1.1 over a raw socket: pipelined requests, any bytes at all, nothing checked on the way."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass

TIMEOUT_S = 20.0
_PIECE = 1 << 16


class NoAnswer(Exception):  # noqa: N818
    """Raised when the connection ended, or when nothing came in time.

    is_late: nothing came in time.
    """

    def __init__(self, text: str, *, is_late: bool = False) -> None:
        super().__init__(text)
        self.is_late = is_late


@dataclass(slots=True)
class Answer:
    """One answer.

    closes: the server ends the connection after it.
    """

    status: int
    content: bytes
    closes: bool


class Connection:
    """One connection. Requests are sent as bytes; answers are read one by one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self._buffer = b""

    def send(self, data: bytes) -> None:
        """Sends data, and connects first where needed.

        When the server has closed meanwhile, `read` raises the error.
        """
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=TIMEOUT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._buffer = b""
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(data)

    def read(self, *, has_body: bool = True) -> Answer:
        """Reads the next answer; interim ones (1xx) are left out. Raises NoAnswer."""
        while True:
            while (end := self._buffer.find(b"\r\n\r\n")) < 0:
                self._more()
            head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
            lines = head.split(b"\r\n")
            try:
                status = int(lines[0].split(b" ")[1])
                length = next(int(line[15:]) for line in lines[1:] if line.startswith(b"content-length:"))
            except (ValueError, IndexError, StopIteration):
                if lines[0].startswith(b"HTTP/1.1 1"):
                    continue
                raise NoAnswer(f"this is no answer: {head[:500]!r}") from None
            if has_body:
                while len(self._buffer) < length:
                    self._more()
                content, self._buffer = self._buffer[:length], self._buffer[length:]
            else:
                content = b""
            return Answer(status, content, b"connection: close" in lines)

    def rest(self, seconds: float) -> bytes:
        """Ends its own half and reads until the server has ended its half, too. Raises NoAnswer when it does not."""
        if self._socket is None:
            return b""
        parts = [self._buffer]
        deadline = time.monotonic() + seconds
        try:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(seconds)
            while part := self._socket.recv(_PIECE):
                parts.append(part)
                if time.monotonic() > deadline:
                    raise NoAnswer("the connection goes on and on", is_late=True)
        except TimeoutError:
            raise NoAnswer(f"the connection is still open {seconds:g} s after its end", is_late=True) from None
        except ConnectionError:
            pass
        finally:
            self.close()
        return b"".join(parts)

    def until_quiet(self, seconds: float) -> bytes:
        """Reads until nothing has come for so many seconds; returns what was read."""
        assert self._socket is not None
        self._socket.settimeout(seconds)
        parts = [self._buffer]
        with contextlib.suppress(TimeoutError, ConnectionError):
            while part := self._socket.recv(_PIECE):
                parts.append(part)
        self.close()
        return b"".join(parts)

    def close(self) -> None:
        """Closes the connection; the next `send` connects again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _more(self) -> None:
        if self._socket is None:
            raise NoAnswer("not connected")
        try:
            part = self._socket.recv(_PIECE)
        except TimeoutError:
            raise NoAnswer(f"no answer within {TIMEOUT_S:g} s", is_late=True) from None
        except ConnectionError as error:
            raise NoAnswer(f"the connection was lost: {error}") from None
        if not part:
            raise NoAnswer("the connection ended without an answer")
        self._buffer += part
