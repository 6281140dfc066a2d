"""Reads compressed text at any place in it.

Compressed bytes can be read from their beginning only. Where a folder is given, the text is therefore kept there once
more, in chunks that are compressed one by one and read in any order. Elsewhere it is decompressed forward, and again
from the beginning for what lies before.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, ClassVar

import numpy as np
import pyarrow as pa

from storage.data.places import Place
from storage.errors import StoreError

#: The codec of compressed files, in pyarrow's words, by their extension.
CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}

#: Bytes in which most first lines end.
HEAD_BYTES = 16 << 10

_CHUNK_BYTES = 4 << 20
_END = b"EMBRCPY1"
# The places of the chunks are followed by their number, the length of the text, and the mark.
_TAIL_BYTES = 8 + 8 + len(_END)
# Decompressed streams that wait for the next read, which mostly begins where the one before ended.
_WAITING_AT_MOST = 8


@dataclass(frozen=True)
class CompressedPlace(Place):
    """A file whose bytes, decompressed, are text."""

    codec: str = "gzip"
    #: Where the copy lies that can be read in any order, made when it is not there; None for no copy.
    copy: Path | None = None
    _streams: _Streams = field(default_factory=lambda: _Streams(), compare=False, repr=False)

    def open(self) -> Any:
        """Opens the text. Raises OSError, and StoreError when the copy cannot be written."""
        if self.copy is None:
            return _Forward(self, self._streams)
        try:
            return _Chunks(self.copy)
        except (OSError, ValueError):  # it is not there, or its end is not
            _write_copy(self, self.copy)
        return _Chunks(self.copy)

    def decompressed(self) -> Any:
        """Opens the text as a stream, from its beginning."""
        return pa.CompressedInputStream(self.filesystem.open_input_stream(self.inner, compression=None), self.codec)


class _Text:
    """Text that is open: the part of pyarrow's NativeFile that reading lines needs."""

    def __init__(self) -> None:
        self._at = 0

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError

    def read_at(self, count: int, offset: int) -> Any:
        raise NotImplementedError

    def seek(self, offset: int) -> None:
        self._at = offset

    def read(self, count: int) -> bytes:
        data = bytes(self.read_at(count, self._at))
        self._at += len(data)
        return data


class _Stream:
    """A decompressed stream, and where it is."""

    def __init__(self, place: CompressedPlace) -> None:
        self._stream = place.decompressed()
        self.at = 0

    def read(self, count: int) -> Any:
        """Reads `count` bytes, fewer at the end only."""
        parts = []
        while count > 0 and (part := self._stream.read_buffer(count)).size:
            parts.append(part)
            count -= part.size
            self.at += part.size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def skip_to(self, offset: int) -> None:
        while self.at < offset and len(self.read(min(_CHUNK_BYTES, offset - self.at))):
            pass

    def close(self) -> None:
        self._stream.close()


class _Streams:
    """The streams of a file that wait for the next read. Thread-safe."""

    # Of all files together, so that a folder of thousands does not hold as many open.
    _lock: ClassVar = threading.Lock()
    _waiting: ClassVar[list[tuple[_Streams, int, _Stream]]] = []

    def __init__(self) -> None:
        #: How the text begins, which is read again with every block for the names of the columns.
        self.head = b""

    def take(self, offset: int) -> _Stream | None:
        """Takes the stream that is nearest before `offset`."""
        with self._lock:
            mine = [entry for entry in self._waiting if entry[0] is self and entry[1] == os.getpid()]
            near = [entry for entry in mine if entry[2].at <= offset]
            if not near:
                return None
            found = max(near, key=lambda entry: entry[2].at)
            self._waiting.remove(found)
            return found[2]

    def give(self, stream: _Stream) -> None:
        with self._lock:
            self._waiting.append((self, os.getpid(), stream))  # a fork shares the place in the file
            if len(self._waiting) > _WAITING_AT_MOST:
                self._waiting.pop(0)[2].close()

    @classmethod
    def close_all(cls) -> None:
        with cls._lock:
            while cls._waiting:
                cls._waiting.pop()[2].close()

    def __reduce__(self) -> tuple[type[_Streams], tuple[()]]:
        return _Streams, ()


# Streams of Python's file systems cannot be closed when the interpreter is gone.
atexit.register(_Streams.close_all)


class _Forward(_Text):
    """Decompresses from the beginning, or from where an earlier read ended."""

    def __init__(self, place: CompressedPlace, streams: _Streams) -> None:
        super().__init__()
        self._place, self._streams = place, streams
        self._stream: _Stream | None = None

    def read_at(self, count: int, offset: int) -> Any:
        if offset + count <= len(self._streams.head):
            return self._streams.head[offset : offset + count]
        if self._stream is not None and self._stream.at > offset:
            self.close()
        if self._stream is None:
            self._stream = self._streams.take(offset) or _Stream(self._place)
        stream, self._stream = self._stream, None  # one that fails is not used again
        stream.skip_to(offset)
        data = stream.read(count)
        self._stream = stream
        if offset == 0 and not self._streams.head:
            self._streams.head = bytes(data[:HEAD_BYTES])
        return data

    def close(self) -> None:
        if self._stream is not None:
            self._streams.give(self._stream)
            self._stream = None


class _Chunks(_Text):
    """Reads a copy. Raises OSError or ValueError when it is not there as a whole."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._codec = pa.Codec("zstd")
        self._file = path.open("rb")
        try:
            size = os.fstat(self._file.fileno()).st_size
            tail = self._pread(size - _TAIL_BYTES, _TAIL_BYTES)
            count, self._length = np.frombuffer(tail[:16], np.int64).tolist()
            if tail[16:] != _END or count != -(-self._length // _CHUNK_BYTES):
                raise ValueError(f"{path}: no end of a copy")
            places = self._pread(size - _TAIL_BYTES - 8 * (count + 1), 8 * (count + 1))
            self._places: list[int] = np.frombuffer(places, np.int64).tolist()
        except (OSError, ValueError):
            self._file.close()
            raise

    def read_at(self, count: int, offset: int) -> Any:
        end = min(offset + count, self._length)
        if end <= offset:
            return b""
        parts = []
        for chunk in range(offset // _CHUNK_BYTES, -(-end // _CHUNK_BYTES)):
            first = chunk * _CHUNK_BYTES
            there = min(_CHUNK_BYTES, self._length - first)
            packed = self._pread(self._places[chunk], self._places[chunk + 1] - self._places[chunk])
            text = self._codec.decompress(packed, there)
            begin = max(offset - first, 0)
            parts.append(text.slice(begin, min(end - first, there) - begin))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        self._file.close()

    def _pread(self, offset: int, count: int) -> bytes:
        if offset < 0:
            raise ValueError("too short")
        data = os.pread(self._file.fileno(), count, offset)
        if len(data) != count:
            raise ValueError("too short")
        return data


def _write_copy(place: CompressedPlace, path: Path) -> None:
    codec = pa.Codec("zstd", compression_level=1)
    unfinished = path.with_name(f"{path.name}.part{os.getpid()}")
    places, length = [0], 0
    try:
        with _writing(place, path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = unfinished.open("wb")
        with file:
            stream = _Stream(place)
            while len(chunk := stream.read(_CHUNK_BYTES)):
                packed = codec.compress(chunk, asbytes=True)
                with _writing(place, path):
                    file.write(packed)
                places.append(places[-1] + len(packed))
                length += len(chunk)
            stream.close()
            with _writing(place, path):
                _write_end(file, places, length)
        with _writing(place, path):
            unfinished.replace(path)
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def _write_end(file: BinaryIO, places: list[int], length: int) -> None:
    file.write(np.array([*places, len(places) - 1, length], np.int64).tobytes() + _END)
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _writing(place: CompressedPlace, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{path.parent}: {place.shown} cannot be kept there in a form that is read in any order: "
            f"{error.strerror or error}. It takes about as many bytes as the file; make room, or convert it "
            "(emberline data convert)"
        ) from error
