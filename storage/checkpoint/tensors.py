"""Reads and writes the safetensors layout without copies and without trusting a byte of it.

A file is: u64 little-endian length of the header, the header (JSON: name -> dtype, shape, data_offsets), the data. The
reader accepts exactly what the writer makes: no `__metadata__`, no duplicate name, no gap, no overlap, no byte after
the end. Files are ordinary safetensors files; any other reader can open them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from storage.checkpoint.strict_json import parse_json
from storage.errors import CheckpointError, UnsafeArtifact

# BF16 has no numpy type: its two bytes are passed as uint16, and the caller views them.
DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
MAX_HEADER_BYTES = 16 << 20
_WRITE_BYTES = 16 << 20


@dataclass(frozen=True)
class WrittenFile:
    """The size and the digest of a file, computed from the bytes as they are written."""

    size: int
    sha256: str


class _HashingFile:
    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._size += len(data)

    def finish(self) -> WrittenFile:
        self._file.flush()
        os.fsync(self._file.fileno())
        return WrittenFile(self._size, self._digest.hexdigest())

    def close(self) -> None:
        self._file.close()


def write_bytes(path: Path, data: bytes) -> WrittenFile:
    """Writes a new file and forces it to the disk."""
    file = _HashingFile(path)
    try:
        file.write(data)
        return file.finish()
    finally:
        file.close()


def write_tensors(
    path: Path, tensors: Mapping[str, np.ndarray], dtypes: Mapping[str, str] | None = None
) -> WrittenFile:
    """Writes arrays as a new safetensors file and forces it to the disk.

    dtypes: safetensors names for arrays whose numpy type does not say it (a uint16 view of bfloat16).
    """
    arrays: list[tuple[str, str, np.ndarray]] = []
    for name, value in tensors.items():
        native = np.ascontiguousarray(value).reshape(value.shape)
        native = native.astype(native.dtype.newbyteorder("<"), copy=False)
        dtype = (dtypes or {}).get(name) or _NAMES.get(native.dtype)
        if dtype is None:
            raise CheckpointError(f"tensor {name!r}: cannot store dtype {value.dtype}; use one of {sorted(DTYPES)}")
        arrays.append((name, dtype, native))
    # The widest come first, so that every array lies on a multiple of its own item size.
    arrays.sort(key=lambda entry: (-DTYPES[entry[1]].itemsize, entry[0]))

    header: dict[str, Any] = {}
    offset = 0
    for name, dtype, array in arrays:
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    file = _HashingFile(path)
    try:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for _, _, array in arrays:
            if array.nbytes:
                data = array.reshape(-1).view(np.uint8).data
                for start in range(0, len(data), _WRITE_BYTES):
                    file.write(data[start : start + _WRITE_BYTES])
        return file.finish()
    finally:
        file.close()


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file. `arrays` are read-only views of its bytes; `dtypes` are the names in the file."""

    arrays: dict[str, np.ndarray]
    dtypes: dict[str, str]

    @classmethod
    def open(cls, path: Path) -> TensorFile:
        """Maps a file. Raises UnsafeArtifact naming the file and what is wrong."""
        # numpy cannot map an empty file, which is refused anyway.
        mapped = path.stat().st_size > 0
        return cls.from_bytes(path.name, np.asarray(np.memmap(path, dtype=np.uint8, mode="r")) if mapped else b"")

    @classmethod
    def from_bytes(cls, name: str, content: np.ndarray | bytes) -> TensorFile:
        """Reads a file's bytes and checks its whole header; `arrays` are views of them.

        name: for messages. content: (size,) uint8 or bytes. Raises UnsafeArtifact naming the file and what is wrong.
        """
        size = len(content)
        if size < 8:
            raise UnsafeArtifact(f"{name}: {size} bytes, too short for a safetensors file")
        data = np.frombuffer(content, np.uint8)
        header_bytes = int.from_bytes(data[:8].tobytes(), "little")
        if header_bytes > min(MAX_HEADER_BYTES, size - 8):
            raise UnsafeArtifact(f"{name}: the header claims {header_bytes} bytes, the file has {size}")
        header = parse_json(data[8 : 8 + header_bytes].tobytes(), what=f"{name} header", max_bytes=MAX_HEADER_BYTES)
        if not isinstance(header, dict):
            raise UnsafeArtifact(f"{name}: the header is not a JSON object")
        body = data[8 + header_bytes :]
        arrays: dict[str, np.ndarray] = {}
        dtypes: dict[str, str] = {}
        end = 0
        for tensor, entry in sorted(header.items(), key=lambda item: _start_of(name, *item)):
            dtype, shape, (first, last) = _checked_entry(name, tensor, entry)
            if first != end:
                raise UnsafeArtifact(f"{name}: tensor {tensor!r} starts at {first}, expected {end} (gap or overlap)")
            if last > len(body):
                raise UnsafeArtifact(f"{name}: tensor {tensor!r} ends at {last}, the data has {len(body)} bytes")
            end = last
            if dtype == "BOOL" and np.any(body[first:last] > 1):
                raise UnsafeArtifact(f"{name}: tensor {tensor!r} is BOOL and holds bytes other than 0 and 1")
            array = body[first:last].view(DTYPES[dtype]).reshape(shape)
            arrays[tensor] = array if array.flags.aligned else array.copy()
            dtypes[tensor] = dtype
        if end != len(body):
            raise UnsafeArtifact(f"{name}: {len(body) - end} bytes behind the last tensor")
        return cls(arrays, dtypes)


@dataclass(frozen=True)
class TensorPlace:
    """The place of a tensor in a file."""

    dtype: str
    shape: tuple[int, ...]
    #: First byte, counted from the end of the header.
    first: int
    #: The byte after the last, counted from the end of the header.
    last: int


def read_header(name: str, file: FileIO, *, metadata: bool = False) -> tuple[dict[str, TensorPlace], int]:
    """Returns the tensors of a file and the offset of its data. Reads the header alone.

    name: for messages. metadata: accept a `__metadata__`, which no file of ours has. Raises UnsafeArtifact.
    """
    size = os.fstat(file.fileno()).st_size
    header_bytes = int.from_bytes(file.read(8), "little")
    if size < 8 or header_bytes > min(MAX_HEADER_BYTES, size - 8):
        raise UnsafeArtifact(f"{name}: the header claims {header_bytes} bytes, the file has {size}")
    header = parse_json(file.read(header_bytes), what=f"{name} header", max_bytes=MAX_HEADER_BYTES)
    if not isinstance(header, dict):
        raise UnsafeArtifact(f"{name}: the header is not a JSON object")
    if metadata:
        header.pop("__metadata__", None)
    places: dict[str, TensorPlace] = {}
    for tensor, entry in header.items():
        _start_of(name, tensor, entry)
        dtype, shape, (first, last) = _checked_entry(name, tensor, entry)
        if not 0 <= first <= last <= size - 8 - header_bytes:
            raise UnsafeArtifact(f"{name}: tensor {tensor!r} lies outside of the file")
        places[tensor] = TensorPlace(dtype, shape, first, last)
    check_apart(name, {each: (place.first, place.last) for each, place in places.items()}, size - 8 - header_bytes)
    return places, 8 + header_bytes


def check_apart(name: str, places: Mapping[str, tuple[int, int]], size: int) -> None:
    """Raises UnsafeArtifact unless tensors fill the data of a file, one behind the other.

    name: of the file. places: first byte and the one after the last. size: bytes of the data.
    """
    end, before = 0, ""
    for tensor, (first, last) in sorted(places.items(), key=lambda entry: entry[1]):
        if first < end:
            raise UnsafeArtifact(
                f"{name}: the tensors {before!r} and {tensor!r} overlap: one ends at byte {end}, the other begins at "
                f"{first}"
            )
        if first > end:
            raise UnsafeArtifact(f"{name}: no tensor has the bytes from {end} on, and {tensor!r} begins at {first}")
        end, before = last, tensor
    if end != size:
        raise UnsafeArtifact(f"{name}: {size - end} bytes lie behind the last tensor")


def _start_of(file: str, tensor: str, entry: object) -> int:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or not offsets or type(offsets[0]) is not int:
        raise UnsafeArtifact(f"{file}: header entry {tensor!r} is not a tensor")
    return offsets[0]


def _checked_entry(file: str, tensor: str, entry: Any) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    if set(entry) != {"dtype", "shape", "data_offsets"}:
        raise UnsafeArtifact(f"{file}: tensor {tensor!r} has the keys {sorted(entry)}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UnsafeArtifact(f"{file}: tensor {tensor!r} has dtype {dtype!r}, expected one of {sorted(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > 8 or any(type(n) is not int or not 0 <= n < 2**48 for n in shape):
        raise UnsafeArtifact(f"{file}: tensor {tensor!r} has the shape {shape!r}")
    if len(offsets) != 2 or any(type(n) is not int or n < 0 for n in offsets):
        raise UnsafeArtifact(f"{file}: tensor {tensor!r} has the offsets {offsets!r}")
    if offsets[1] - offsets[0] != math.prod(shape) * DTYPES[dtype].itemsize:
        raise UnsafeArtifact(f"{file}: tensor {tensor!r} of {dtype} {shape} does not fill its offsets {offsets}")
    return dtype, tuple(shape), (offsets[0], offsets[1])
