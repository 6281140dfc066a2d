"""Decompresses requests and compresses responses with gzip and deflate; the decompressed size is bounded.

Only short bodies are processed on the event loop; the others go to threads, where zlib releases the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import re
import zlib

from serving.http.messages import BodyRoom, Headers, UnsupportedEncoding
from storage.errors import InvalidInput

# Bytes of a body that are read and produced at a time.
SLICE_BYTES = 1 << 20
# Larger bodies go to a thread: on the event loop they would take more than a millisecond.
_SHORT_BYTES = 64 << 10
# Smaller responses are not compressed: they fit into one packet of the network anyway.
MIN_RESPONSE_BYTES = 1024
# The most members of a gzip body: each needs a decoder, and may be empty.
MAX_MEMBERS = 16
_LEVEL = 1

# zlib's window bits: for gzip's header, and for zlib's own.
_WINDOWS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
_QUALITY = re.compile(rb"\s*q\s*=\s*([0-9.]+)\s*")


def check_encoding(encoding: bytes) -> None:
    """Raises UnsupportedEncoding for a Content-Encoding that is not known."""
    if encoding.lower() not in (b"", b"identity", *_WINDOWS):
        raise UnsupportedEncoding(
            f"Content-Encoding {encoding[:40].decode('latin-1')!r} is not supported; send gzip, deflate or identity"
        )


async def decompress(body: bytes, encoding: bytes, room: BodyRoom) -> bytes:
    """Returns the decompressed body.

    Raises InvalidInput for a body that does not have that encoding, ends too early, or continues after its end;
    BodyTooLarge and Overloaded before it produces more bytes than the limits allow.
    """
    window = _WINDOWS.get(encoding.lower())
    if window is None:
        return body
    decoder = zlib.decompressobj(window)
    view = memoryview(body)
    parts: list[bytes] = []
    at = made = 0
    members = 1
    while True:
        if decoder.eof:
            if at == len(body):
                return b"".join(parts)
            # gzip may continue with another member; zlib has none.
            if window != _WINDOWS[b"gzip"]:
                raise _bad(encoding, "bytes follow its end")
            members += 1
            if members > MAX_MEMBERS:
                raise _bad(encoding, f"it has more than {MAX_MEMBERS} members")
            decoder = zlib.decompressobj(window)
        piece = view[at : at + SLICE_BYTES]
        size = min(SLICE_BYTES, room.max_body - made + 1)
        room.hold(size)
        try:
            if made or len(piece) > _SHORT_BYTES:
                part = await asyncio.to_thread(decoder.decompress, piece, size)
            else:
                part = decoder.decompress(piece, size)
        except zlib.error as error:
            raise _bad(encoding, str(error)) from None
        room.hold(len(part) - size)
        made += len(part)
        if made > room.max_body:
            raise room.too_large(f"over {room.max_body}")
        at += len(piece) - len(decoder.unconsumed_tail) - len(decoder.unused_data)
        if not part and not piece and not decoder.eof:
            raise _bad(encoding, "it ends too early")
        if part:
            parts.append(part)


def accepted_encoding(accepts: bytes) -> bytes:
    """Returns the encoding of a response to a request with this Accept-Encoding; b"" for none. Prefers gzip."""
    best, best_quality = b"", 0.0
    qualities: dict[bytes, float] = {}
    for entry in accepts.lower().split(b","):
        name, _, parameter = entry.partition(b";")
        given = _QUALITY.fullmatch(parameter)
        try:
            qualities[name.strip()] = float(given[1]) if given else 1.0
        except ValueError:
            continue
    for name in (b"gzip", b"deflate"):
        quality = qualities.get(name, qualities.get(b"*", 0.0))
        if quality > best_quality:
            best, best_quality = name, quality
    return best


async def compress(content: bytes, accepts: bytes, headers: Headers) -> bytes:
    """Compresses a response's body as its client prefers, and adds that to the headers.

    Returns the body unchanged if it would not get smaller. accepts: the request's Accept-Encoding.
    """
    if len(content) < MIN_RESPONSE_BYTES:
        return content
    encoding = accepted_encoding(accepts)
    if not encoding:
        return content
    if len(content) > _SHORT_BYTES:
        packed = await asyncio.to_thread(_compress, content, encoding)
    else:
        packed = _compress(content, encoding)
    headers.append((b"vary", b"accept-encoding"))
    if len(packed) >= len(content):
        return content
    headers.append((b"content-encoding", encoding))
    return packed


def _compress(content: bytes, encoding: bytes) -> bytes:
    encoder = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOWS[encoding])
    return encoder.compress(content) + encoder.flush()


def _bad(encoding: bytes, why: str) -> InvalidInput:
    return InvalidInput(f"the body is not {encoding.decode('latin-1')}: {why}", field="body")
