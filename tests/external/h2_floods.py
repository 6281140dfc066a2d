"""Floods of HTTP/2 frames that have cost servers their memory or their time, each on a few connections of its own.

Only what is cheap for the attacker is a flood: each is at most some megabytes of frames. A server may end the
connection, or reset streams, or take it all; its memory has to stay, and others have to be answered meanwhile.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.external import h2_frames as h2
from tests.external.h2_vectors import Call

_STREAMS = range(1, 4001, 2)


@dataclass(frozen=True)
class Flood:
    """Frames behind the preface and settings."""

    name: str
    frames: Callable[[Call], Iterator[bytes]]
    #: The weakness that it has in other servers, where it has a name.
    known_as: str = ""


def _repeated(
    piece: bytes, count: int, before: Callable[[Call], bytes] = lambda call: b""
) -> Callable[[Call], Iterator[bytes]]:
    def frames(call: Call) -> Iterator[bytes]:
        yield before(call)
        for _ in range(100):
            yield piece * (count // 100)

    return frames


def _resets(call: Call) -> Iterator[bytes]:
    for number in range(1, 40_001, 2):
        yield h2.headers(number, call.fields) + h2.reset(number)


def _ended_and_reset(call: Call) -> Iterator[bytes]:
    for number in range(1, 40_001, 2):
        yield call.sent(number) + h2.reset(number)


def _provoked_resets(call: Call) -> Iterator[bytes]:
    # Each is an error of its stream, so the server resets it.
    for number in range(1, 40_001, 2):
        yield h2.headers(number, call.fields) + h2.window_update(number, 0)


def _head(call: Call) -> bytes:
    return h2.headers(1, call.fields)


def _open_head(call: Call) -> bytes:
    return h2.headers(1, call.block, 0)


def _table_fields(call: Call) -> Iterator[bytes]:
    # A field of 4 kB enters the table once, and each byte of later heads names it again.
    field = b"\x40" + h2.number(3, 7) + b"x-a" + h2.number(4000, 7) + b"a" * 4000
    yield h2.headers(1, call.block + field)
    for number in _STREAMS[1:]:
        yield h2.headers(number, call.block + b"\xbe" * 14)


def _unended(call: Call) -> Iterator[bytes]:
    for number in _STREAMS:
        yield h2.headers(number, call.fields)


def _large_claims(call: Call) -> Iterator[bytes]:
    for number in _STREAMS:
        yield h2.headers(number, call.fields) + h2.data(number, b"\0" + struct.pack(">I", 60 << 20) + b"a", 0)


def _unread(call: Call) -> Iterator[bytes]:
    yield h2.settings((4, 0))
    for number in _STREAMS:
        yield call.sent(number)


def _priorities(call: Call) -> Iterator[bytes]:
    for number in range(1, 200_001, 2):
        yield h2.priority(number, number + 2)


def _unknown_settings(call: Call) -> Iterator[bytes]:
    for _ in range(100):
        yield h2.settings(*[(1000 + n, n) for n in range(2000)]) * 3


FLOODS = (
    Flood("calls that are reset at once", _resets, "rapid reset, CVE-2023-44487"),
    Flood("whole calls that are reset at once", _ended_and_reset, "rapid reset, CVE-2023-44487"),
    Flood("calls that the server has to reset", _provoked_resets, "MadeYouReset, CVE-2025-8671"),
    Flood("pings", _repeated(h2.ping(), 200_000), "CVE-2019-9512"),
    Flood("settings", _repeated(h2.settings((4, 65_535)), 200_000), "CVE-2019-9515"),
    Flood("settings that nobody knows", _unknown_settings),
    Flood("DATA of nothing", _repeated(h2.data(1, b"", 0), 200_000, _head), "CVE-2019-9518"),
    Flood("DATA that is padding", _repeated(h2.frame(h2.DATA, h2.PADDED, 1, b"\x20" + bytes(32)), 50_000, _head)),
    Flood("CONTINUATION of nothing", _repeated(h2.frame(h2.CONTINUATION, 0, 1), 200_000, _open_head), "CVE-2019-9518"),
    Flood(
        "CONTINUATION without an end",
        _repeated(h2.frame(h2.CONTINUATION, 0, 1, h2.field(b"x", b"a" * 4000)), 4000, _open_head),
        "CVE-2024-28182",
    ),
    Flood(
        "fields without a name",
        _repeated(h2.frame(h2.CONTINUATION, 0, 1, b"\0\0\0" * 100), 20_000, _open_head),
        "CVE-2019-9516",
    ),
    Flood("fields that name one of the table", _table_fields, "HPACK bomb, CVE-2016-6581"),
    Flood("priorities", _priorities, "CVE-2019-9513"),
    Flood("WINDOW_UPDATE", _repeated(h2.window_update(0, 1), 200_000)),
    Flood("frames of an unknown kind", _repeated(h2.frame(0x77, 0, 0, bytes(100)), 50_000)),
    Flood("calls without an end", _unended),
    Flood("calls whose message claims to be large", _large_claims),
    Flood("calls whose answers are not taken", _unread, "CVE-2019-9517"),
)
