"""Reads and writes the system shared memory that clients have registered.

Tensors are copied out of it and into it by the kernel (pread, pwrite), never mapped: a client that shrinks its region
would end a process that reads a mapping, and one that continues to write while a request runs would change what was
checked already.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from serving.errors import AlreadyExists
from serving.protocol.regions import RegionPart
from storage.errors import InvalidInput, NotFound, Overloaded, Unavailable, Unsupported

FOLDER = Path("/dev/shm")
MAX_REGIONS = 1024

# Only plain names are allowed, so that a key cannot lead out of the folder; semaphores are there too.
_KEY = re.compile(r"/?(?!sem\.)[A-Za-z0-9_][A-Za-z0-9_.\-]{0,253}")
_MAX_NAME = 1024


@dataclass(frozen=True, slots=True)
class RegionName:
    """A region that a client registered."""

    name: str
    #: Key of `shm_open`.
    key: str
    #: The region is `byte_size` bytes of the segment from `offset` on.
    offset: int
    byte_size: int


class _OpenRegion:
    """Holds the descriptor of a region as long as anything uses it."""

    __slots__ = ("fd", "said")

    def __init__(self, said: RegionName, fd: int) -> None:
        self.said = said
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class _Held:
    """Counts the bytes of buffers as long as anything uses them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._lock = threading.Lock()

    def buffer(self, size: int) -> bytearray:
        """Returns a new buffer. Raises Overloaded when all buffers together would be too large."""
        with self._lock:
            if self._bytes + size > self._limit:
                raise Overloaded(f"requests hold {self._bytes} bytes of shared memory already; try later")
            self._bytes += size
        buffer = _Buffer(size)
        buffer.on_gone = partial(self._give_back, size)
        return buffer

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._bytes -= size


class _Buffer(bytearray):
    on_gone: Callable[[], None]

    def __del__(self) -> None:
        self.on_gone()


class SharedRegions:
    """The regions that are registered, by name. Thread-safe. See serving.protocol.regions.Regions."""

    def __init__(self, max_read: int, max_held: int = sys.maxsize, *, prefixes: Sequence[str] = ()) -> None:
        """max_read: bytes that the inputs of one request may have together. max_held: bytes of all requests under way.

        prefixes: beginnings of the names of segments that may be registered.
        """
        self.max_read = max_read
        self._held = _Held(max_held)
        self._prefixes = tuple(prefixes) if FOLDER.is_dir() else ()
        self._lock = threading.Lock()
        # Replaced as a whole, so that a request reads it without a lock.
        self._open: Mapping[str, _OpenRegion] = {}

    @property
    def is_empty(self) -> bool:
        """See Regions."""
        return not self._open

    def read(self, part: RegionPart) -> memoryview:
        """See Regions."""
        region = self._find(part)
        buffer = self._held.buffer(part.size)
        at = region.said.offset + part.offset
        done = 0
        while done < part.size:
            try:
                count = os.preadv(region.fd, [memoryview(buffer)[done:]], at + done)
            except OSError as error:
                raise _failed(part, error) from None
            if count == 0:
                raise InvalidInput(
                    f"shared memory region {part.region[:100]!r} has become smaller than it was registered",
                    field="shared_memory_region",
                )
            done += count
        return memoryview(buffer)

    def write(self, part: RegionPart, data: bytes) -> None:
        """See Regions."""
        region = self._find(part)
        if len(data) > part.size:
            raise InvalidInput(
                f"shared memory region {part.region[:100]!r}: the output has {len(data)} bytes, "
                f"shared_memory_byte_size leaves {part.size}",
                field="shared_memory_byte_size",
            )
        at = region.said.offset + part.offset
        if os.fstat(region.fd).st_size < at + len(data):
            raise InvalidInput(
                f"shared memory region {part.region[:100]!r} has become smaller than it was registered",
                field="shared_memory_region",
            )
        done = 0
        while done < len(data):
            try:
                done += os.pwrite(region.fd, memoryview(data)[done:], at + done)
            except OSError as error:  # a segment without pages behind it, and no memory left for them
                raise _failed(part, error) from None

    def check(self, part: RegionPart) -> None:
        """See Regions."""
        self._find(part)

    def _find(self, part: RegionPart) -> _OpenRegion:
        region = self._open.get(part.region)
        if region is None:
            raise InvalidInput(
                f"Unable to find shared memory region: {part.region[:100]!r}; register it first",
                field="shared_memory_region",
            )
        if part.offset + part.size > region.said.byte_size:
            raise InvalidInput(
                f"Invalid offset + byte size for shared memory region {part.region[:100]!r}: {part.offset} + "
                f"{part.size} bytes, it has {region.said.byte_size}",
                field="shared_memory_byte_size",
            )
        return region

    def register(self, said: RegionName) -> None:
        """Registers a region. Raises InvalidInput, AlreadyExists, Unsupported, Overloaded."""
        if not self._prefixes:
            raise Unsupported(
                "shared memory is off, or there is no /dev/shm; start the server with --shared-memory PREFIX, and it "
                "takes segments whose names begin with that"
            )
        if not said.name or len(said.name) > _MAX_NAME:
            raise InvalidInput(f"a region's name has 1 to {_MAX_NAME} characters", field="name")
        with self._lock:
            if said.name in self._open:
                raise AlreadyExists(f"shared memory region {said.name[:100]!r} already in manager; unregister it first")
            if len(self._open) >= MAX_REGIONS:
                raise Overloaded(f"{MAX_REGIONS} shared memory regions are registered already; unregister some")
            self._open = {**self._open, said.name: _OpenRegion(said, _open(said, self._prefixes))}

    def unregister(self, name: str = "") -> None:
        """Forgets a region, or all without a name. An unknown name is no error, as in Triton."""
        with self._lock:
            self._open = {known: region for known, region in self._open.items() if name not in ("", known)}

    def status(self, name: str = "") -> list[RegionName]:
        """Returns the region of that name, or all without a name. Raises NotFound."""
        found = [region.said for known, region in self._open.items() if name in ("", known)]
        if name and not found:
            raise NotFound(f"Unable to find system shared memory region: {name[:100]!r}")
        return found


def _failed(part: RegionPart, error: OSError) -> Unavailable:
    return Unavailable(f"shared memory region {part.region[:100]!r}: {error.strerror}")


def _open(said: RegionName, prefixes: tuple[str, ...]) -> int:
    if not _KEY.fullmatch(said.key):
        raise InvalidInput(
            f"shared memory key {said.key[:100]!r} is not the name of a segment, such as '/scores'", field="key"
        )
    if not said.key.removeprefix("/").startswith(prefixes):
        raise InvalidInput(
            f"shared memory key {said.key[:100]!r}: this server takes segments whose names begin with "
            f"{', '.join(map(repr, prefixes))} (--shared-memory)",
            field="key",
        )
    for field, value in (("offset", said.offset), ("byte_size", said.byte_size)):
        if not 0 <= value < 2**62:
            raise InvalidInput(f"{field!r} is {value}, expected a number of bytes", field=field)
    path = FOLDER / said.key.removeprefix("/")
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InvalidInput(
            f"Unable to open shared memory region: {said.key!r}: {error.strerror}", field="key"
        ) from None
    try:
        found = os.fstat(fd)
    except OSError as error:
        os.close(fd)
        raise Unavailable(f"shared memory region {said.key!r}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode) or said.offset + said.byte_size > found.st_size:
        os.close(fd)
        raise InvalidInput(
            f"failed to register shared memory region {said.name[:100]!r}: invalid args: {said.offset} + "
            f"{said.byte_size} bytes, the segment {said.key!r} has {found.st_size}",
            field="byte_size",
        )
    return fd
