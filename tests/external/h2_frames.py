"""Frames of HTTP/2 and blocks of HPACK as bytes, right or wrong: nothing is checked on the way."""

from __future__ import annotations

import struct
from collections.abc import Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
#: Codes of errors, in the order of their numbers (RFC 9113, 7).
CODES = (
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
)
Fields = Sequence[tuple[bytes, bytes]]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", *, length: int | None = None) -> bytes:
    """Returns a frame. length: what it says of its payload; None for the truth."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def number(value: int, prefix: int, first: int = 0) -> bytes:
    """Returns an integer of HPACK. prefix: bits of the first byte that it has; first: the bits before them."""
    limit = (1 << prefix) - 1
    if value < limit:
        return bytes([first | value])
    out = bytearray([first | limit])
    value -= limit
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(name: bytes, value: bytes) -> bytes:
    """Returns a header field, literally and without a place in the dynamic table."""
    return b"\0" + number(len(name), 7) + name + number(len(value), 7) + value


def block(fields: Fields) -> bytes:
    """Returns a block of header fields."""
    return b"".join(field(name, value) for name, value in fields)


def headers(stream: int, fields: Fields | bytes, flags: int = END_HEADERS) -> bytes:
    """Returns a HEADERS frame. fields: as such, or encoded."""
    return frame(HEADERS, flags, stream, fields if isinstance(fields, bytes) else block(fields))


def data(stream: int, content: bytes, flags: int = END_STREAM) -> bytes:
    """Returns a DATA frame."""
    return frame(DATA, flags, stream, content)


def settings(*pairs: tuple[int, int]) -> bytes:
    """Returns a SETTINGS frame of identifiers and values."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def window_update(stream: int, size: int) -> bytes:
    """Returns a WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size))


def reset(stream: int, code: int = 8) -> bytes:
    """Returns a RST_STREAM frame; by default it cancels."""
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def priority(stream: int, other: int, flags: int = 0) -> bytes:
    """Returns a PRIORITY frame."""
    return frame(PRIORITY, flags, stream, struct.pack(">IB", other, 16))


def goaway(last: int, code: int = 0, stream: int = 0) -> bytes:
    """Returns a GOAWAY frame."""
    return frame(GOAWAY, 0, stream, struct.pack(">II", last, code))


def ping(content: bytes = b"12345678", flags: int = 0) -> bytes:
    """Returns a PING frame."""
    return frame(PING, flags, 0, content)
