"""Reads the index of a TensorFlow checkpoint of version 2: which tensor lies where in the files of data.

The index is an SSTable as LevelDB writes it, whose values are protobuf messages. Both are read by the few lines here;
nothing of TensorFlow is needed, and nothing in the file can run.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage._pages import crc32c
from storage.errors import InvalidInput, Unsupported
from storage.importing.files import file_size

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_MAX_BYTES = 1 << 30
_TRAILER_BYTES = 5
_MASK = 0xA282EAD8
# Of an entry beside its bytes, and how much larger entries may be than the file.
_ENTRY_BYTES = 64
_MOST_EXPANDED = 16
#: TensorFlow's numbers of the dtypes that can hold ids or rows.
DTYPES = {1: "float32", 2: "float64", 3: "int32", 9: "int64", 14: "bfloat16", 19: "float16"}

# First and length of each dimension; a length of -1 is all of it.
Slice = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Entry:
    """A tensor, or a slice of one. crc: of its bytes, masked; 0 where there is none."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    #: The slices that it is saved as; empty for one that is saved whole.
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class Index:
    """The content of an index: entries by key, and the number of files of data."""

    entries: dict[bytes, Entry]
    shards: int


def read_index(path: Path) -> Index:
    """Reads an index. Raises InvalidInput for a file that is none, or is damaged; NotFound without it."""
    size = file_size(path)
    if size > _MAX_BYTES:
        raise InvalidInput(f"{path}: {size:,} bytes are too many for an index")
    data = path.read_bytes()
    try:
        pairs = _bounded(_pairs(data), _MOST_EXPANDED * size + _ENTRY_BYTES * _MOST_EXPANDED)
        entries = {key: _entry(value) for key, value in pairs if key}
        header = dict(pairs).get(b"")
        if header is None:
            raise InvalidInput("it has no header")
        fields = _fields(header)
    except (InvalidInput, IndexError, struct.error, ValueError) as error:
        raise InvalidInput(f"{path}: is no index of a TensorFlow checkpoint, or damaged: {error}") from None
    if _last(fields, 2):
        raise Unsupported(f"{path}: was written on a machine of the other byte order")
    return Index(entries, _last(fields, 1))


def slice_key(name: str, part: Slice) -> bytes:
    """Returns the key under which a slice of a tensor stands in an index."""
    key = _number(0) + _text(name.encode()) + _number(len(part))
    for first, length in part:
        key += _signed(first) + _signed(length)
    return key


def unmasked(crc: int) -> int:
    """Returns a checksum as it was before it was masked."""
    rotated = (crc - _MASK) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def _pairs(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(data) < _FOOTER_BYTES or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise InvalidInput("it does not end as a table does; it is cut off")
    footer = data[-_FOOTER_BYTES:-8]
    _, _, at = _handle(footer, 0)
    offset, size, _ = _handle(footer, at)
    for _, handle in _block(data, offset, size):
        first, length, _ = _handle(handle, 0)
        yield from _block(data, first, length)


def _bounded(pairs: Iterator[tuple[bytes, bytes]], most: int) -> list[tuple[bytes, bytes]]:
    """Returns entries that take so much memory at most: blocks may be named twice, and keys share their beginnings."""
    found: list[tuple[bytes, bytes]] = []
    for key, value in pairs:
        most -= len(key) + len(value) + _ENTRY_BYTES
        if most < 0:
            raise InvalidInput("its entries take far more memory than it has bytes")
        found.append((key, value))
    return found


def _block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    end = offset + size
    if end + _TRAILER_BYTES > len(data):
        raise InvalidInput("a block ends behind it")
    if data[end] != 0:
        raise InvalidInput("its blocks are compressed, which TensorFlow does not do")
    if crc32c(data[offset : end + 1]) != unmasked(struct.unpack("<I", data[end + 1 : end + 5])[0]):
        raise InvalidInput("the checksum of a block differs")
    restarts = struct.unpack("<I", data[end - 4 : end])[0]
    stop = end - 4 - 4 * restarts
    at, key = offset, b""
    while at < stop:
        shared, at = _varint(data, at)
        fresh, at = _varint(data, at)
        length, at = _varint(data, at)
        if shared > len(key) or at + fresh + length > stop:
            raise InvalidInput("an entry ends behind its block")
        key = key[:shared] + data[at : at + fresh]
        yield key, data[at + fresh : at + fresh + length]
        at += fresh + length


def _handle(data: bytes, at: int) -> tuple[int, int, int]:
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return offset, size, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise InvalidInput("a number is too long")


def _fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """Returns the fields of a protobuf message: numbers, or the bytes of what is nested."""
    found: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        value: int | bytes
        if kind == 0:
            value, at = _varint(data, at)
        elif kind in (1, 5):
            width = 8 if kind == 1 else 4
            if at + width > len(data):
                raise InvalidInput("a field is cut off")
            value, at = int.from_bytes(data[at : at + width], "little"), at + width
        elif kind == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise InvalidInput("a field is cut off")
            value, at = data[at : at + length], at + length
        else:
            raise InvalidInput(f"a field of kind {kind}")
        found.append((tag >> 3, value))
    return found


def _last(fields: Sequence[tuple[int, int | bytes]], number: int, missing: int = 0) -> int:
    value = missing
    for field, given in fields:
        if field == number and isinstance(given, int):
            value = given
    return value


def _nested(fields: Sequence[tuple[int, int | bytes]], number: int) -> list[list[tuple[int, int | bytes]]]:
    return [_fields(value) for field, value in fields if field == number and isinstance(value, bytes)]


def _int64(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _entry(data: bytes) -> Entry:
    fields = _fields(data)
    shape = tuple(_int64(_last(dim, 1)) for message in _nested(fields, 2) for dim in _nested(message, 2))
    slices = tuple(
        tuple((_int64(_last(extent, 1)), _int64(_last(extent, 2, 2**64 - 1))) for extent in _nested(message, 1))
        for message in _nested(fields, 7)
    )
    return Entry(
        _last(fields, 1), shape, _last(fields, 3), _last(fields, 4), _last(fields, 5), _last(fields, 6), slices
    )


def _number(value: int) -> bytes:
    """Returns a number so that the order of bytes is the order of numbers: its length, then its bytes."""
    content = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([len(content)]) + content


def _text(value: bytes) -> bytes:
    escaped = (
        value.replace(b"\xff", b"\xff\x00")
        if b"\x00" not in value
        else b"".join(b"\x00\xff" if byte == 0 else b"\xff\x00" if byte == 255 else bytes([byte]) for byte in value)
    )
    return escaped + b"\x00\x01"


def _signed(value: int) -> bytes:
    """Returns a signed number in as few bytes as its order needs: the leading bits say how many."""
    magnitude = ~value if value < 0 else value
    length = 1
    while magnitude >= 1 << (7 * length - 1):
        length += 1
    if length > 8:
        raise InvalidInput(f"a slice begins at {value}")
    content = bytearray((value & (2 ** (8 * length) - 1)).to_bytes(length, "big"))
    # The first `length` bits are ones for a number that is not negative, and zeros for others.
    header = (0xFF << (8 - length)) & 0xFF
    content[0] ^= header
    return bytes(content)
