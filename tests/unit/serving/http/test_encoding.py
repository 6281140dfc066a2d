from __future__ import annotations

import asyncio
import gzip
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.errors import BodyTooLarge
from serving.http.encoding import SLICE_BYTES, accepted_encoding, check_encoding, compress, decompress
from serving.http.messages import UnsupportedEncoding
from storage.errors import InvalidInput, Overloaded
from tests.support.examples import examples

LARGE = bytes(range(256)) * (3 * SLICE_BYTES // 256 + 5)


class Room:
    """Counts the bytes that are held, and their maximum."""

    def __init__(self, max_body: int = 64 << 20, inflight: int = 1 << 40) -> None:
        self.max_body, self.inflight = max_body, inflight
        self.held = self.highest = 0

    def hold(self, size: int) -> None:
        if self.held + size > self.inflight:
            raise Overloaded("full")
        self.held += size
        self.highest = max(self.highest, self.held)

    def too_large(self, got: str) -> BodyTooLarge:
        return BodyTooLarge(got)


def unpack(body: bytes, encoding: bytes, room: Room | None = None) -> bytes:
    return asyncio.run(decompress(body, encoding, room or Room()))


@settings(deadline=None, max_examples=examples(40))
@given(st.binary(max_size=4096), st.sampled_from([b"gzip", b"deflate"]))
def test_what_was_compressed_comes_out_again(body: bytes, encoding: bytes) -> None:
    packed = gzip.compress(body) if encoding == b"gzip" else zlib.compress(body)
    room = Room()
    assert unpack(packed, encoding, room) == body
    assert room.held == len(body), "what is held is what was made"


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
def test_a_body_of_several_slices_comes_out_whole(encoding: bytes) -> None:
    packed = gzip.compress(LARGE, 1) if encoding == b"gzip" else zlib.compress(LARGE, 1)
    assert unpack(packed, encoding) == LARGE


def test_gzip_may_have_several_members_and_zlib_may_not() -> None:
    assert unpack(gzip.compress(b"one") + gzip.compress(b"") + gzip.compress(b"two"), b"gzip") == b"onetwo"
    with pytest.raises(InvalidInput, match="bytes follow"):
        unpack(zlib.compress(b"one") + zlib.compress(b"two"), b"deflate")


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = zlib.compress(bytes(64 << 20), 9)
    room = Room(max_body=2 << 20)
    with pytest.raises(BodyTooLarge):
        unpack(bomb, b"deflate", room)
    assert room.highest <= (2 << 20) + 1
    room = Room(inflight=3 << 20)
    with pytest.raises(Overloaded):
        unpack(bomb, b"deflate", room)
    assert room.highest <= 3 << 20


def test_a_body_of_exactly_the_limit_is_taken() -> None:
    assert len(unpack(zlib.compress(bytes(5000)), b"deflate", Room(max_body=5000))) == 5000
    with pytest.raises(BodyTooLarge):
        unpack(zlib.compress(bytes(5001)), b"deflate", Room(max_body=5000))


@pytest.mark.parametrize(
    "body",
    [b"", b"no gzip at all", gzip.compress(b"cut off")[:-3], gzip.compress(b"x") + b"more", zlib.compress(b"x")],
    ids=["empty", "junk", "cut", "trailing", "zlib"],
)
def test_what_is_not_of_the_encoding_is_the_callers_mistake(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="not gzip"):
        unpack(body, b"gzip")


@pytest.mark.parametrize("encoding", [b"br", b"gzip, gzip", b"zstd"])
def test_an_unknown_encoding_is_named(encoding: bytes) -> None:
    with pytest.raises(UnsupportedEncoding, match=encoding.decode()):
        check_encoding(encoding)


@pytest.mark.parametrize(
    ("accepts", "chosen"),
    [
        (b"", b""),
        (b"identity", b""),
        (b"gzip", b"gzip"),
        (b"deflate", b"deflate"),
        (b"gzip, deflate, br", b"gzip"),
        (b"gzip;q=0.2, deflate;q=0.7", b"deflate"),
        (b"gzip;q=0", b""),
        (b"gzip;q=0, *", b"deflate"),
        (b"*", b"gzip"),
        (b"*;q=0", b""),
        (b"GZIP ; q=1.0", b"gzip"),
        (b"gzip;q=1.2.3", b""),
        (b"br", b""),
    ],
)
def test_the_encoding_that_the_client_likes_best(accepts: bytes, chosen: bytes) -> None:
    assert accepted_encoding(accepts) == chosen


def test_only_what_gets_smaller_is_compressed() -> None:
    def packed(content: bytes, encoding: bytes) -> tuple[bytes, dict[bytes, bytes]]:
        headers: list[tuple[bytes, bytes]] = []
        return asyncio.run(compress(content, encoding, headers)), dict(headers)

    content, headers = packed(LARGE, b"gzip")
    assert gzip.decompress(content) == LARGE
    assert headers == {b"vary": b"accept-encoding", b"content-encoding": b"gzip"}
    noise = random.Random(1).randbytes(2000)
    assert packed(noise, b"deflate") == (noise, {b"vary": b"accept-encoding"})
    assert packed(b"small", b"gzip") == (b"small", {})
    assert packed(LARGE, b"") == (LARGE, {})
