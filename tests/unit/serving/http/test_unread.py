"""Requests end at the right byte of a connection, however reads divide them."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.config import ServerConfig
from serving.http.limits import HttpLimits
from serving.http.unread import Unread
from storage.errors import Overloaded

REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.fixture
def limits() -> HttpLimits:
    return HttpLimits(ServerConfig(model_repository=Path(), max_body_bytes=1024, max_inflight_bytes=4000))


def ends(unread: Unread, data: bytes) -> list[int]:
    """Returns where the pieces of one read end."""
    found, at = [], 0
    while at < len(data):
        at = unread.piece_end(data, at, 0)
        found.append(at)
    unread.consumed(data)
    return found


@pytest.mark.parametrize("first", range(1, len(REQUEST)))
@pytest.mark.parametrize("second", [1, 2, 3, 50])
def test_no_piece_holds_the_ends_of_two_requests(limits: HttpLimits, first: int, second: int) -> None:
    unread = Unread(limits)
    sent = REQUEST * 3
    borders, at = set(), 0
    for step in (first, second, second, second, second, len(sent)):
        read = sent[at : at + step]
        borders |= {at + end for end in ends(unread, read)}
        at += len(read)
    assert {len(REQUEST), 2 * len(REQUEST), 3 * len(REQUEST)} <= borders


def test_a_body_with_a_length_ends_by_it(limits: HttpLimits) -> None:
    unread = Unread(limits)
    assert unread.piece_end(b"a\r\n\r\nbGET", 0, 6) == 6
    assert unread.piece_end(b"a\r\n\r\nb", 0, 60) == 6
    assert unread.piece_end(b"GET / HTTP", 0, 0) == 10


def test_what_is_kept_is_counted_and_bounded(limits: HttpLimits) -> None:
    one, other = Unread(limits), Unread(limits)
    one.keep(bytes(600))
    other.keep(bytes(400))
    with pytest.raises(Overloaded, match="ahead of its answers"):
        other.keep(bytes(401))
    assert (one.data, other.data) == (bytes(600), b"")
    one.keep(bytes(100))
    other.keep(bytes(900))
    one.consumed(b"")
    other.consumed(b"")
    other.keep(bytes(1000))
