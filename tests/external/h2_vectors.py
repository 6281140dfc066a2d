"""Frames of HTTP/2 on which servers have been wrong, each with what RFC 9113 and RFC 7541 expect of a server.

A vector is sent behind the preface and settings, unless it replaces these. What may come of it is a set of outcomes:

- "connection CODE": the server ends the connection, with or without a GOAWAY before (5.4.1 only recommends it);
- "stream CODE": it resets stream 1 and goes on. A server may always treat this as an error of the connection (5.4.1);
- "answered": the call on stream 1 is answered with OK, and the connection goes on;
- "refused": it is answered with another status, of HTTP or of gRPC, and the connection goes on;
- "ignored": nothing comes of it, and the connection goes on;
- "answered, then ended": the server ends the connection without an error when the call is answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.external.h2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Fields,
    block,
    data,
    field,
    frame,
    goaway,
    headers,
    number,
    ping,
    priority,
    reset,
    settings,
    window_update,
)

ANSWERED, REFUSED, IGNORED, ENDED = "answered", "refused", "ignored", "answered, then ended"


def connection(*codes: str) -> frozenset[str]:
    """Returns the outcomes of an error of the connection."""
    return frozenset(f"connection {code}" for code in codes)


def stream(*codes: str) -> frozenset[str]:
    """Returns the outcomes of an error of a stream, which may end the connection too."""
    return frozenset(f"{what} {code}" for code in codes for what in ("stream", "connection"))


#: A malformed request is an error of its stream (8.1.1), or gets an answer that says so.
MALFORMED = stream("PROTOCOL_ERROR") | {REFUSED}
OK = frozenset({ANSWERED})
NOTHING = frozenset({IGNORED})
PROTOCOL = connection("PROTOCOL_ERROR")
SIZE = connection("FRAME_SIZE_ERROR")
COMPRESSION = connection("COMPRESSION_ERROR")
_SETTINGS = settings()


@dataclass(frozen=True)
class Vector:
    """Bytes for a connection, and what may come of them."""

    name: str
    data: bytes
    outcomes: frozenset[str]
    #: The section of RFC 9113, or of RFC 7541 where it begins with "7541".
    section: str
    #: What is sent first.
    begin: bytes = PREFACE + _SETTINGS


@dataclass(frozen=True)
class Call:
    """A unary call: the fields of its head, and its message with gRPC's prefix."""

    fields: Fields
    message: bytes

    def sent(self, on: int = 1) -> bytes:
        """Returns the frames of the call."""
        return headers(on, self.fields) + data(on, self.message)

    def without(self, *names: bytes) -> Fields:
        """Returns the fields of the head without some."""
        return [entry for entry in self.fields if entry[0] not in names]

    def with_fields(self, *more: tuple[bytes, bytes]) -> bytes:
        """Returns the frames of the call with further fields behind the others."""
        return headers(1, [*self.fields, *more]) + data(1, self.message)

    def of(self, fields: Fields) -> bytes:
        """Returns the frames of the call with these fields instead."""
        return headers(1, fields) + data(1, self.message)

    @property
    def block(self) -> bytes:
        """Returns the encoded fields of the head."""
        return block(self.fields)


def vectors(call: Call) -> list[Vector]:
    """Returns all vectors, around a call that is answered with OK."""
    found = [
        *_begins(call),
        *_sizes(call),
        *_settings_frames(call),
        *_controls(call),
        *_streams(call),
        *_windows(call),
        *_padding(call),
        *_continuations(call),
        *_fields(call),
        *_compression(call),
    ]
    assert len({vector.name for vector in found}) == len(found)
    return found


def _begins(call: Call) -> Iterator[Vector]:
    for name, begin in (
        ("HTTP/1.1 instead", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + bytes(64)),
        ("another version", PREFACE.replace(b"2.0", b"2.1") + _SETTINGS),
        ("a preface with one byte changed", PREFACE[:-5] + b"X" + PREFACE[-4:] + _SETTINGS),
        ("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64)),
        ("a call right behind the preface", PREFACE + call.sent()),
        ("a ping right behind the preface", PREFACE + ping()),
        ("an acknowledgement right behind the preface", PREFACE + frame(SETTINGS, ACK, 0)),
    ):
        yield Vector(name, b"", PROTOCOL, "3.4", begin)
    yield Vector("a call", call.sent(), OK, "8.1")
    yield Vector("a call on stream 5", call.sent(5), OK, "5.1.1")
    yield Vector("a call with the reserved bit set", call.sent(1 | 1 << 31), OK, "4.1")
    pieces = b"".join(data(1, call.message[at : at + 1], 0) for at in range(len(call.message)))
    yield Vector("a message byte by byte", headers(1, call.fields) + pieces + data(1, b""), OK, "6.1")
    yield Vector("a kind of frame that nobody knows", frame(0x77, 0xFF, 1, b"abc") + call.sent(), OK, "5.5")
    trailers = headers(1, [(b"x-end", b"1")], END_HEADERS | END_STREAM)
    yield Vector("trailers of a request", headers(1, call.fields) + data(1, call.message, 0) + trailers, OK, "8.1")


def _sizes(call: Call) -> Iterator[Vector]:
    huge = (1 << 24) - 1
    yield Vector(
        "DATA that is too large",
        headers(1, call.fields) + frame(DATA, 0, 1, bytes(9), length=huge),
        SIZE | stream("FRAME_SIZE_ERROR"),
        "4.2",
    )
    yield Vector("HEADERS that are too large", frame(HEADERS, END_HEADERS, 1, bytes(9), length=huge), SIZE, "4.2")
    yield Vector("SETTINGS that are too large", frame(SETTINGS, 0, 0, bytes(9), length=6 * 2_000_000), SIZE, "4.2")
    yield Vector(
        "a frame of an unknown kind that is too large", frame(0x77, 0, 0, bytes(9), length=huge), SIZE | NOTHING, "4.2"
    )
    yield Vector("SETTINGS of five bytes", frame(SETTINGS, 0, 0, bytes(5)), SIZE, "6.5")
    yield Vector("an acknowledgement with a setting", frame(SETTINGS, ACK, 0, bytes(6)), SIZE, "6.5")
    yield Vector("PING of seven bytes", frame(PING, 0, 0, bytes(7)), SIZE, "6.7")
    yield Vector("PING of nine bytes", frame(PING, 0, 0, bytes(9)), SIZE, "6.7")
    yield Vector("WINDOW_UPDATE of three bytes", frame(WINDOW_UPDATE, 0, 0, bytes(3)), SIZE, "6.9")
    yield Vector("RST_STREAM of three bytes", headers(1, call.fields) + frame(RST_STREAM, 0, 1, bytes(3)), SIZE, "6.4")
    yield Vector(
        "PRIORITY of four bytes",
        headers(1, call.fields) + frame(PRIORITY, 0, 1, bytes(4)),
        SIZE | stream("FRAME_SIZE_ERROR"),
        "6.3",
    )
    yield Vector("GOAWAY of seven bytes", frame(GOAWAY, 0, 0, bytes(7)), SIZE, "6.8")
    yield Vector(
        "HEADERS with half a priority", frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, bytes(3)), SIZE | PROTOCOL, "6.2"
    )


def _settings_frames(call: Call) -> Iterator[Vector]:
    yield Vector("SETTINGS on a stream", frame(SETTINGS, 0, 1), PROTOCOL, "6.5")
    yield Vector("ENABLE_PUSH of 2", settings((2, 2)), PROTOCOL, "6.5.2")
    yield Vector("INITIAL_WINDOW_SIZE of 2**31", settings((4, 1 << 31)), connection("FLOW_CONTROL_ERROR"), "6.5.2")
    yield Vector("MAX_FRAME_SIZE of 16383", settings((5, 16_383)), PROTOCOL, "6.5.2")
    yield Vector("MAX_FRAME_SIZE of 2**24", settings((5, 1 << 24)), PROTOCOL, "6.5.2")
    yield Vector("a setting that nobody knows", settings((0x7777, 5)) + call.sent(), OK, "6.5.2")
    yield Vector(
        "every setting twice",
        settings(*[(n, v) for n, v in ((1, 0), (2, 0), (3, 9), (4, 70_000), (5, 16_384), (6, 9_999))] * 2)
        + call.sent(),
        OK,
        "6.5.3",
    )
    yield Vector("HEADER_TABLE_SIZE of 2**32 - 1", settings((1, (1 << 32) - 1)) + call.sent(), OK, "6.5.2")
    yield Vector(
        "an acknowledgement that nobody asked for", frame(SETTINGS, ACK, 0) * 3 + call.sent(), OK | PROTOCOL, "6.5"
    )
    narrow = settings((4, 0)) + call.sent() + window_update(1, 1 << 20)
    yield Vector("a window of nothing, which opens later", narrow, OK, "6.9.2")
    shut = call.sent() + settings((4, 3)) + settings((4, 0)) + settings((4, 70_000))
    yield Vector("windows that shrink below nothing and grow", shut, OK, "6.9.2")
    over = headers(1, call.fields) + window_update(1, (1 << 31) - 1 - 65_535) + settings((4, 65_536))
    # nghttp2 resets the streams whose window it is, and keeps the connection.
    yield Vector("a setting by which a window overflows", over, stream("FLOW_CONTROL_ERROR"), "6.9.2")


def _controls(call: Call) -> Iterator[Vector]:
    yield Vector("PING on a stream", frame(PING, 0, 1, bytes(8)), PROTOCOL, "6.7")
    yield Vector("an answer to no PING", ping(flags=ACK) + call.sent(), OK, "6.7")
    yield Vector("PING with unknown flags", frame(PING, 0xFE, 0, b"abcdefgh") + call.sent(), OK, "4.1")
    yield Vector("GOAWAY on a stream", goaway(0, stream=1), PROTOCOL, "6.8")
    yield Vector(
        "GOAWAY with a text behind a call",
        call.sent() + frame(GOAWAY, 0, 0, bytes(8) + b"bye"),
        OK | connection("NO_ERROR") | {ENDED},
        "6.8",
    )
    yield Vector(
        "PUSH_PROMISE of a client",
        headers(1, call.fields) + frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + call.block),
        PROTOCOL,
        "8.4",
    )
    yield Vector("RST_STREAM on stream 0", reset(0), PROTOCOL, "6.4")
    yield Vector("RST_STREAM of an idle stream", reset(1), PROTOCOL, "6.4")
    yield Vector("RST_STREAM of a call", headers(1, call.fields) + reset(1), NOTHING, "6.4")
    yield Vector("RST_STREAM twice", headers(1, call.fields) + reset(1) * 2, NOTHING | stream("STREAM_CLOSED"), "5.1")
    yield Vector("RST_STREAM with an unknown code", headers(1, call.fields) + reset(1, 0xFFFF), NOTHING, "7")
    yield Vector("PRIORITY on stream 0", priority(0, 1), PROTOCOL, "6.3")
    yield Vector("PRIORITY of an idle stream", priority(7, 0) + call.sent(), OK, "5.1")
    # RFC 7540 made it an error; RFC 9113 has no priorities any more.
    yield Vector(
        "PRIORITY of a stream that depends on itself",
        priority(1, 1) + call.sent(),
        OK | stream("PROTOCOL_ERROR"),
        "5.3.2",
    )
    itself = frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"\0\0\0\1\x0f" + call.block) + data(1, call.message)
    yield Vector("HEADERS of a stream that depends on itself", itself, OK | stream("PROTOCOL_ERROR"), "5.3.2")
    other = frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"\x80\0\0\x63\xff" + call.block) + data(1, call.message)
    yield Vector("HEADERS that depend on an unknown stream", other, OK, "5.3.2")


def _streams(call: Call) -> Iterator[Vector]:
    closed = stream("STREAM_CLOSED")
    yield Vector("DATA on stream 0", data(0, b"abc"), PROTOCOL, "6.1")
    yield Vector("DATA on an idle stream", data(1, b"abc"), PROTOCOL, "5.1")
    yield Vector("HEADERS on stream 0", headers(0, call.fields), PROTOCOL, "6.2")
    yield Vector("an even stream", headers(2, call.fields), PROTOCOL, "5.1.1")
    # nghttp2 ignores a head that may have crossed a reset of its own, and so any head below the newest one.
    down = headers(5, call.fields) + headers(3, call.fields)
    yield Vector("a stream below another", down, PROTOCOL | connection("STREAM_CLOSED") | NOTHING, "5.1.1")
    yield Vector(
        "DATA behind the end of a request",
        call.sent() + data(1, b"abc"),
        closed | OK | connection("PROTOCOL_ERROR"),
        "5.1",
    )
    yield Vector(
        "HEADERS behind the end of a request", call.sent() + headers(1, call.fields), closed | PROTOCOL | OK, "5.1"
    )
    gone = headers(1, call.fields) + reset(1)
    yield Vector("DATA on a stream that was reset", gone + data(1, b"abc"), closed | NOTHING, "5.1")
    yield Vector(
        "HEADERS on a stream that was reset", gone + headers(1, call.fields), closed | PROTOCOL | NOTHING, "5.1"
    )
    yield Vector("WINDOW_UPDATE of a stream that was reset", gone + window_update(1, 5), NOTHING, "5.1")
    yield Vector("PRIORITY of a stream that was reset", gone + priority(1, 0), NOTHING, "5.1")
    twice = headers(1, call.fields) + headers(1, call.fields)
    yield Vector("a second head without an end", twice, MALFORMED, "8.1")
    pseudo = (
        headers(1, call.fields) + data(1, call.message, 0) + headers(1, [(b":path", b"/")], END_HEADERS | END_STREAM)
    )
    yield Vector("trailers with a pseudo-header", pseudo, MALFORMED, "8.1")


def _windows(call: Call) -> Iterator[Vector]:
    flow = "FLOW_CONTROL_ERROR"
    yield Vector("WINDOW_UPDATE of 0", window_update(0, 0), PROTOCOL, "6.9")
    yield Vector(
        "WINDOW_UPDATE of 0 of a stream", headers(1, call.fields) + window_update(1, 0), stream("PROTOCOL_ERROR"), "6.9"
    )
    yield Vector("WINDOW_UPDATE beyond 2**31 - 1", window_update(0, (1 << 31) - 1), connection(flow), "6.9.1")
    over = headers(1, call.fields) + window_update(1, (1 << 31) - 1)
    yield Vector("WINDOW_UPDATE of a stream beyond 2**31 - 1", over, stream(flow), "6.9.1")
    yield Vector("WINDOW_UPDATE of an idle stream", window_update(1, 5), PROTOCOL, "5.1")
    yield Vector("WINDOW_UPDATE with the reserved bit set", window_update(0, 5 | 1 << 31) + call.sent(), OK, "6.9")
    # More than any window that a server here offers; it may also refuse the call before.
    flood = headers(1, call.fields) + data(1, bytes(16_384), 0) * 1200
    beyond = stream(flow) | {REFUSED} | stream("ENHANCE_YOUR_CALM", "CANCEL", "NO_ERROR")
    yield Vector("DATA beyond every window", flood, beyond, "6.9.1")


def _padding(call: Call) -> Iterator[Vector]:
    begun = headers(1, call.fields)
    padded = frame(HEADERS, END_HEADERS | PADDED, 1, b"\5" + call.block + bytes(5))
    padded += frame(DATA, END_STREAM | PADDED, 1, b"\xff" + call.message + bytes(255))
    yield Vector("a call with padding", padded, OK, "6.1")
    yield Vector(
        "DATA whose padding is all", begun + frame(DATA, PADDED, 1, b"\3" + bytes(3)) + data(1, call.message), OK, "6.1"
    )
    yield Vector("DATA with more padding than bytes", begun + frame(DATA, PADDED, 1, b"\4" + bytes(3)), PROTOCOL, "6.1")
    yield Vector("DATA with padding of itself", begun + frame(DATA, PADDED, 1, b"\1"), PROTOCOL, "6.1")
    yield Vector("DATA without the length of its padding", begun + frame(DATA, PADDED, 1), SIZE | PROTOCOL, "6.1")
    yield Vector(
        "HEADERS with more padding than bytes",
        frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + call.block),
        PROTOCOL,
        "6.2",
    )
    yield Vector(
        "HEADERS without the length of their padding", frame(HEADERS, END_HEADERS | PADDED, 1), SIZE | PROTOCOL, "6.2"
    )


def _continuations(call: Call) -> Iterator[Vector]:
    half = headers(1, call.block[:20], 0)
    rest = frame(CONTINUATION, END_HEADERS, 1, call.block[20:])
    yield Vector("a head in two frames", half + rest + data(1, call.message), OK, "6.10")
    parts = b"".join(frame(CONTINUATION, 0, 1, call.block[at : at + 40]) for at in range(20, len(call.block), 40))
    yield Vector(
        "a head in seven frames",
        half + parts + frame(CONTINUATION, END_HEADERS, 1) + data(1, call.message),
        OK | connection("ENHANCE_YOUR_CALM", "PROTOCOL_ERROR", "INTERNAL_ERROR"),
        "6.10",
    )
    yield Vector("CONTINUATION behind nothing", rest, PROTOCOL, "6.10")
    yield Vector("CONTINUATION behind a whole head", headers(1, call.fields) + rest, PROTOCOL, "6.10")
    yield Vector("CONTINUATION on stream 0", half + frame(CONTINUATION, END_HEADERS, 0, b""), PROTOCOL, "6.10")
    yield Vector(
        "CONTINUATION of another stream", half + frame(CONTINUATION, END_HEADERS, 3, call.block[20:]), PROTOCOL, "6.10"
    )
    for name, between in (
        ("PING", ping()),
        ("DATA", data(1, call.message)),
        ("HEADERS of another stream", headers(3, call.fields)),
        ("PRIORITY", priority(1, 0)),
        ("a frame of an unknown kind", frame(0x77, 0, 1, b"abc")),
        ("WINDOW_UPDATE", window_update(0, 5)),
        ("SETTINGS", settings()),
        ("RST_STREAM", reset(1)),
    ):
        yield Vector(f"{name} within a head", half + between + rest, PROTOCOL, "4.3")


def _fields(call: Call) -> Iterator[Vector]:
    for name in (b"X-Upper", b"x y", b"x:y", b"x\0y", b"x\ry", b"x\x7f", b"\xc3\xa4", b"", b" x"):
        yield Vector(f"a field named {name!r}", call.with_fields((name, b"1")), MALFORMED, "8.2.1")
    for value in (b"a\0b", b"a\rb", b"a\nb", b"a\r\nx: b"):
        yield Vector(f"a value {value!r}", call.with_fields((b"x-odd", value)), MALFORMED, "8.2.1")
    for value in (b" a", b"a ", b"\ta"):
        # Few servers look; it harms nobody unless it is passed on in HTTP/1.1.
        yield Vector(f"a value {value!r}", call.with_fields((b"x-odd", value)), MALFORMED | OK, "8.2.1")
    for name, value in (
        (b"connection", b"keep-alive"),
        (b"keep-alive", b"timeout=5"),
        (b"proxy-connection", b"keep-alive"),
        (b"transfer-encoding", b"chunked"),
        (b"upgrade", b"h2c"),
    ):
        yield Vector(f"a field {name.decode()}", call.with_fields((name, value)), MALFORMED, "8.2.2")
    te = call.without(b"te")
    yield Vector("te: gzip", call.of([*te, (b"te", b"gzip")]), MALFORMED, "8.2.2")
    yield Vector("te: trailers", call.of([*te, (b"te", b"trailers")]), OK, "8.2.2")
    for name in (b":method", b":scheme", b":path"):
        yield Vector(f"no {name.decode()}", call.of(call.without(name)), MALFORMED, "8.3.1")
        (entry,) = [each for each in call.fields if each[0] == name]
        yield Vector(f"two {name.decode()}", call.of([entry, *call.fields]), MALFORMED, "8.3")
        late = [*call.without(name), entry]
        yield Vector(f"{name.decode()} behind other fields", call.of(late), MALFORMED, "8.3")
    yield Vector("an empty :path", call.of([(b":path", b""), *call.without(b":path")]), MALFORMED, "8.3.1")
    yield Vector(
        "a :path without a slash", call.of([(b":path", b"infer"), *call.without(b":path")]), MALFORMED, "8.3.1"
    )
    yield Vector("an unknown pseudo-header", call.of([(b":odd", b"1"), *call.fields]), MALFORMED, "8.3")
    yield Vector(":status in a request", call.of([(b":status", b"200"), *call.fields]), MALFORMED, "8.3")
    # Only a server that has said so takes extended CONNECT.
    yield Vector(":protocol", call.of([(b":protocol", b"websocket"), *call.fields]), MALFORMED, "8441 4")
    # gRPC has POST alone; its C core resets the stream as if the mistake were its own.
    get = call.of([(b":method", b"GET"), *call.without(b":method")])
    yield Vector("another method", get, MALFORMED | stream("INTERNAL_ERROR"), "8.3.1")
    yield Vector("CONNECT", call.of([(b":method", b"CONNECT"), *call.without(b":method")]), MALFORMED, "8.5")
    size = len(call.message)
    yield Vector("the right content-length", call.with_fields((b"content-length", b"%d" % size)), OK, "8.1.1")
    for value in (b"%d" % (size + 1), b"%d" % (size - 1), b"0", b"-1", b"x", b"%d, %d" % (size, size), b"9" * 40):
        yield Vector(f"a content-length {value!r}", call.with_fields((b"content-length", value)), MALFORMED, "8.1.1")
    lengths = ((b"content-length", b"%d" % size), (b"content-length", b"%d" % (size + 5)))
    yield Vector("two content-lengths", call.with_fields(*lengths), MALFORMED, "8.1.1")
    yield Vector("another host than the authority", call.with_fields((b"host", b"other")), MALFORMED | OK, "8.3.1")
    yield Vector(
        "cookies in many fields", call.with_fields(*[(b"cookie", b"a=%d" % n) for n in range(20)]), OK, "8.2.3"
    )
    yield Vector(
        "a head of 300 kB",
        headers(1, call.block + field(b"x-big", bytes([97]) * 16_000), 0)
        + b"".join(frame(CONTINUATION, 0, 1, field(b"x-%d" % n, b"a" * 16_000)) for n in range(18))
        + frame(CONTINUATION, END_HEADERS, 1)
        + data(1, call.message),
        MALFORMED | stream("ENHANCE_YOUR_CALM", "REFUSED_STREAM", "INTERNAL_ERROR", "COMPRESSION_ERROR", "CANCEL"),
        "10.5.1",
    )


def _compression(call: Call) -> Iterator[Vector]:
    for name, wrong in (
        ("index 0", b"\x80"),
        ("an index beyond the tables", number(200, 7, 0x80)),
        ("a name by an index beyond the tables", number(200, 6, 0x40) + b"\1a"),
        ("an index that does not end", b"\xff" + b"\xff" * 12),
        ("a string behind the end of the block", b"\0\x0bab"),
        ("a string of 2**60 bytes", b"\0" + number(1 << 60, 7) + b"ab"),
        ("Huffman code with EOS", b"\0\1x\x84" + b"\xff\xff\xff\xfc"),
        ("Huffman code padded with zeros", b"\0\1x\x81" + b"\x18"),
        ("Huffman code padded with a byte", b"\0\1x\x82" + b"\x1f\xff"),
        ("a table larger than allowed", number(1 << 30, 5, 0x20)),
    ):
        begin = wrong + call.block if name.startswith("a table") else call.block + wrong
        yield Vector(name, headers(1, begin) + data(1, call.message), COMPRESSION, "7541 2.3.3")
    yield Vector(
        "a table that changes behind a field",
        headers(1, call.block + b"\x20") + data(1, call.message),
        COMPRESSION,
        "7541 4.2",
    )
    yield Vector(
        "a table of nothing, then of 4096 bytes",
        headers(1, b"\x20" + number(4096, 5, 0x20) + call.block) + data(1, call.message),
        OK,
        "7541 4.2",
    )
    yield Vector(
        "a field that the table remembers",
        headers(1, call.block + b"\x40\1x\1y" + b"\xbe") + data(1, call.message),
        OK,
        "7541 2.3.2",
    )
    forgotten = call.block + b"\x40\1x\1y\x3f\xe1\x1f"
    yield Vector(
        "a table that changes behind a new field",
        headers(1, forgotten) + data(1, call.message),
        COMPRESSION,
        "7541 4.2",
    )
