"""The events that a join holds, on disk: what was read is appended, and a position names the parts that still count.

A part is a range of bytes of a file that is only ever appended to, so commits of any age may refer to it. Files that no
commit refers to are removed.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from storage.errors import CheckpointError

#: (file, first byte, byte behind the last).
Part = tuple[int, int, int]
_FILE_BYTES = 16 << 20
# The lengths of the two tables of a record, and the CRC-32 of both.
_HEAD = struct.Struct("<III")


class JoinLog:
    """Appends pairs of tables, rows and labels, and reads them back. Not thread-safe, except for `sync`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: Any = None
        self._number = 0
        self._end = 0

    def append(self, rows: Any, labels: Any) -> Part:
        """Writes a pair of tables; returns where it lies. Raises CheckpointError when it cannot be written."""
        parts = [_bytes(rows), _bytes(labels)]
        record = _HEAD.pack(len(parts[0]), len(parts[1]), zlib.crc32(parts[1], zlib.crc32(parts[0]))) + b"".join(parts)
        try:
            if self._file is None or self._end >= _FILE_BYTES:
                self._begin()
            self._file.write(record)
            self._file.flush()
        except OSError as error:
            # Bytes of half a record stay behind; they are in no part.
            self._end = _FILE_BYTES
            raise CheckpointError(f"{self._folder}: cannot be written: {error}") from error
        start, self._end = self._end, self._end + len(record)
        return self._number, start, self._end

    def sync(self) -> None:
        """Returns when all that was appended before is on the disk."""
        file = self._file
        if file is not None:
            with contextlib.suppress(ValueError):  # it was closed, and synced before, as another one was begun
                os.fsync(file.fileno())

    def read(self, parts: Iterable[Part]) -> Iterator[tuple[Part, Any, Any]]:
        """Yields the pairs of tables in these parts, each with where it lies. Raises CheckpointError."""
        for number, start, end in parts:
            path = self._path(number)
            try:
                with path.open("rb") as file:
                    file.seek(start)
                    content = file.read(end - start)
            except OSError as error:
                raise _lost(path, str(error)) from error
            at = 0
            while at < end - start:
                if at + _HEAD.size > len(content):
                    raise _lost(path, f"it ends at the byte {start + len(content):,} and {end:,} were written")
                first, second, crc = _HEAD.unpack_from(content, at)
                whole = at + _HEAD.size + first + second
                body = content[at + _HEAD.size : whole]
                if len(body) != first + second or zlib.crc32(body) != crc:
                    raise _lost(path, f"the bytes from {start + at:,} on are not those that were written")
                yield (number, start + at, start + whole), _table(body[:first]), _table(body[first:])
                at = whole

    def remove_others(self, needed: Iterable[int]) -> None:
        """Removes the files with other numbers, of those before the one that is appended to."""
        kept, newest = set(needed), self._number
        for path in self._folder.glob("*.log"):
            if path.stem.isdigit() and int(path.stem) < newest and int(path.stem) not in kept:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        there = [int(path.stem) for path in self._folder.glob("*.log") if path.stem.isdigit()]
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
        number = max([0, *there]) + 1
        self._file = self._path(number).open("xb")
        self._number, self._end = number, 0
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.log"


def joined_parts(parts: Iterable[Part]) -> list[Part]:
    """Returns the parts with those that touch made one."""
    found: list[Part] = []
    for number, start, end in parts:
        if found and found[-1][0] == number and found[-1][2] == start:
            found[-1] = (number, found[-1][1], end)
        else:
            found.append((number, start, end))
    return found


def _bytes(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _table(content: bytes) -> Any:
    with ipc.open_stream(pa.BufferReader(content)) as reader:
        return reader.read_all()


def _lost(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: cannot be read: {why}. It holds events that waited to be joined; restore it, or go back to an "
        "earlier snapshot (--at)"
    )
