"""Sends frames to a server of HTTP/2 as they are, and says what came of them."""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass, field

import hpack

from tests.external import h2_frames as h2
from tests.external.h2_frames import CODES

TIMEOUT_S = 10.0
_MARK = b"\x7fmark\0\0\x01"


@dataclass
class Stream:
    """Keeps what has come on a stream."""

    fields: dict[str, str] = field(default_factory=dict)
    content: bytes = b""
    is_ended: bool = False
    #: Name of the code of a reset.
    reset: str = ""

    @property
    def is_ok(self) -> bool:
        """Returns whether a gRPC call was answered with OK."""
        return self.is_ended and self.fields.get(":status") == "200" and self.fields.get("grpc-status") == "0"


class Peer:
    """One connection to a server. Nothing is sent by itself but what flow control needs."""

    def __init__(self, port: int, begin: bytes, address: str = "127.0.0.1") -> None:
        self._socket = socket.create_connection((address, port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._decoder = hpack.Decoder()
        self._block = b""
        self.streams: dict[int, Stream] = {}
        self.settings: dict[int, int] = {}
        self.pongs: list[bytes] = []
        #: Name of the code of a GOAWAY, "" for none.
        self.goaway = ""
        self.has_ended = False
        self.send(begin)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Sends bytes. The server may end the connection meanwhile."""
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(data)

    def settle(self) -> None:
        """Reads until the server has ended the connection, or has answered a ping that is sent now.

        What came before that ping was then dealt with, except for calls that are still being answered. Raises
        TimeoutError.
        """
        self.send(h2.ping(_MARK))
        while not self.has_ended and _MARK not in self.pongs:
            self._read_frame()

    def wait_for(self, stream: int) -> Stream:
        """Reads until a stream or the connection has ended. Raises TimeoutError."""
        found = self.streams.setdefault(stream, Stream())
        while not (found.is_ended or found.reset or self.has_ended):
            self._read_frame()
        return found

    def _read_frame(self) -> None:
        while len(self._buffer) < 9 or len(self._buffer) < 9 + int.from_bytes(self._buffer[:3]):
            try:
                piece = self._socket.recv(65_536)
            except ConnectionError:
                piece = b""
            if not piece:
                self.has_ended = True
                return
            self._buffer += piece
        size, kind, flags = int.from_bytes(self._buffer[:3]), self._buffer[3], self._buffer[4]
        stream = int.from_bytes(self._buffer[5:9]) & 0x7FFFFFFF
        payload, self._buffer = self._buffer[9 : 9 + size], self._buffer[9 + size :]
        if kind == h2.HEADERS or kind == h2.CONTINUATION:
            self._block += payload
            if kind == h2.HEADERS and flags & h2.END_STREAM:
                self.streams.setdefault(stream, Stream()).is_ended = True
            if flags & h2.END_HEADERS:
                fields = self.streams.setdefault(stream, Stream()).fields
                for name, value in self._decoder.decode(self._block, raw=True):
                    fields[bytes(name).decode("latin-1")] = bytes(value).decode("latin-1")
                self._block = b""
        elif kind == h2.DATA:
            found = self.streams.setdefault(stream, Stream())
            found.content += payload
            found.is_ended = found.is_ended or bool(flags & h2.END_STREAM)
        elif kind == h2.RST_STREAM:
            self.streams.setdefault(stream, Stream()).reset = _name(payload[:4])
        elif kind == h2.SETTINGS and not flags & h2.ACK:
            self.settings.update(struct.iter_unpack(">HI", payload))
        elif kind == h2.PING and flags & h2.ACK:
            self.pongs.append(payload)
        elif kind == h2.GOAWAY:
            self.goaway = _name(payload[4:8])


def _name(code: bytes) -> str:
    number = int.from_bytes(code)
    return CODES[number] if number < len(CODES) else str(number)
