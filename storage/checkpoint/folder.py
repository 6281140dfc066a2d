"""Reads a published folder: plain files only, and every byte that is parsed is a byte that was hashed.

A file is read into memory once, that buffer is hashed, and that buffer is parsed; what happens to the file in between
or afterwards does not matter.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import numpy as np

from storage.checkpoint.signed import MANIFEST, MAX_MANIFEST_BYTES, FileEntry
from storage.errors import IntegrityError, NotFound, ReadError, UnsafeArtifact

# A file is read whole, so a hostile one (a sparse file costs nothing) must not take the machine's memory.
_MAX_BYTES = {
    "dense.pt2": 65 << 20,
    "dense.safetensors": 8 << 30,
    "dense.xor.safetensors": 8 << 30,
    "features.json": 64 << 20,
    "golden.safetensors": 1 << 30,
    "removed.safetensors": 1 << 30,
}
MAX_SHARD_BYTES = 1 << 30
_READ_BYTES = 16 << 20
_CHECK_BYTES = 1 << 20
# Flags that do not follow a link and do not wait for a pipe.
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class VerifiedFolder:
    """Reads and checks the files of a published folder, as its manifest names them."""

    def __init__(self, path: Path, files: Sequence[FileEntry]) -> None:
        self.path = path
        self._files = {entry.path: entry for entry in files}

    def read(self, name: str) -> np.ndarray:
        """Returns a file's bytes, read-only uint8 (size,), after their digest was checked.

        Raises UnsafeArtifact for a file too large to be one of ours, IntegrityError when the bytes are not those that
        were published, NotFound when the whole folder is gone, ReadError when the file cannot be read now.
        """
        entry = self._files[name]
        check_size(name, entry.size)
        with self._opened(name) as file:
            buffer = _read_exactly(file, entry.size)
        if buffer is None or hashlib.sha256(buffer.data).hexdigest() != entry.sha256:
            raise self._changed(name)
        buffer.setflags(write=False)
        return buffer

    def check(self, on_piece: Callable[[], None] = lambda: None) -> None:
        """Computes every digest. Raises IntegrityError naming the first file that differs, ReadError.

        on_piece: called after each MiB or less.
        """
        buffer = memoryview(bytearray(_CHECK_BYTES))
        for name, entry in self._files.items():
            check_size(name, entry.size)
            with self._opened(name) as file:
                digest = hashlib.sha256()
                while count := file.readinto(buffer):
                    digest.update(buffer[:count])
                    on_piece()
            if digest.hexdigest() != entry.sha256:
                raise self._changed(name)

    @contextmanager
    def _opened(self, name: str) -> Iterator[FileIO]:
        try:
            with plain_file(self.path / name) as file:
                yield file
        except FileNotFoundError:
            if not self.path.is_dir():
                raise NotFound(f"{self.path} was removed while it was read") from None
            raise IntegrityError(f"{self.path}: {name!r} is missing") from None

    def _changed(self, name: str) -> IntegrityError:
        return IntegrityError(f"{self.path}: {name!r} is not what was published (its sha256 differs)")


def check_size(name: str, size: int) -> None:
    """Raises UnsafeArtifact when a published file is larger than any that is read."""
    most = _MAX_BYTES.get(name, MAX_SHARD_BYTES)
    if size > most:
        raise UnsafeArtifact(f"{name}: {size} bytes, at most {most} are read")


@contextmanager
def plain_file(path: Path) -> Iterator[FileIO]:
    """Opens a file for reading that is no link, pipe or folder.

    Raises UnsafeArtifact for one that is, FileNotFoundError when it is missing, ReadError for every other failure.
    """
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsafeArtifact(f"{path}: is a symbolic link; published folders hold plain files only") from None
        if error.errno == errno.ENXIO:
            raise UnsafeArtifact(f"{path}: is not a plain file") from None
        raise _unreadable(path, error) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnsafeArtifact(f"{path}: is not a plain file")
        with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
            yield file
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(descriptor)


def read_manifest(folder: Path, sizes: dict[str, int], what: str) -> bytes:
    """Returns the bytes of a folder's manifest.json. what: "version" or "delta", for the message when there is none."""
    if MANIFEST not in sizes:
        raise IntegrityError(f"{folder}: {MANIFEST} is missing; the {what} was not published to the end")
    if sizes[MANIFEST] > MAX_MANIFEST_BYTES:
        raise UnsafeArtifact(f"{MANIFEST}: {sizes[MANIFEST]} bytes, at most {MAX_MANIFEST_BYTES} are read")
    try:
        with plain_file(folder / MANIFEST) as file:
            return _read_at_most(file, sizes[MANIFEST] + 1)
    except FileNotFoundError:
        raise _vanished(folder) from None


def list_files(folder: Path, *, ignored: frozenset[str] = frozenset()) -> dict[str, int]:
    """Returns the sizes of all files in a folder and its `tables`, which may be missing.

    ignored: names of folders that are no part of it. Raises UnsafeArtifact for links and other non-plain files,
    IntegrityError for another folder, NotFound when the folder is gone, ReadError when it cannot be read now.
    """
    sizes: dict[str, int] = {}
    try:
        _list_into(sizes, folder, "", ignored | {"tables"})
        if (folder / "tables").is_dir():
            _list_into(sizes, folder, "tables/", frozenset())
    except FileNotFoundError:
        raise _vanished(folder) from None
    except OSError as error:
        raise _unreadable(folder, error) from error
    return sizes


def _unreadable(path: Path, error: OSError) -> ReadError:
    return ReadError(f"{path}: cannot be read now: {error.strerror or error}; try again")


def _vanished(folder: Path) -> NotFound | ReadError:
    if folder.is_dir():
        return ReadError(f"{folder} changed while it was read, try again")
    return NotFound(f"{folder} was removed while it was read")


def _list_into(sizes: dict[str, int], folder: Path, prefix: str, allowed: frozenset[str]) -> None:
    with os.scandir(folder / prefix) as entries:
        for entry in entries:
            name = prefix + entry.name
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                raise UnsafeArtifact(f"{folder}: {name!r} is a symbolic link; published folders hold plain files only")
            if stat.S_ISDIR(status.st_mode):
                if name not in allowed:
                    raise IntegrityError(f"{folder}: holds the folder {name!r}, which must not be there")
                continue
            if not stat.S_ISREG(status.st_mode):
                raise UnsafeArtifact(f"{folder}: {name!r} is not a plain file")
            sizes[name] = status.st_size


def check_listing(folder: Path, sizes: dict[str, int], files: Sequence[FileEntry]) -> None:
    """Raises IntegrityError unless the folder holds exactly the manifest's files, each of its size."""
    expected = {entry.path: entry for entry in files}
    for name in sorted(set(sizes) - set(expected) - {MANIFEST}):
        raise IntegrityError(f"{folder}: holds {name!r}, which the manifest does not name")
    for name, entry in expected.items():
        if name not in sizes:
            raise IntegrityError(f"{folder}: {name!r} is missing")
        if sizes[name] != entry.size:
            raise IntegrityError(f"{folder}: {name!r} has {sizes[name]} bytes, published were {entry.size}")


def _read_at_most(file: FileIO, most: int) -> bytes:
    # A read may return less than was asked for without being the last: some file systems do that.
    data = bytearray()
    while len(data) < most and (piece := file.read(most - len(data))):
        data += piece
    return bytes(data)


def _read_exactly(file: FileIO, size: int) -> np.ndarray | None:
    # Returns None when the file is longer or shorter.
    buffer = np.empty(size, np.uint8)
    filled = 0
    while filled < size:
        count = file.readinto(buffer[filled : filled + _READ_BYTES].data)
        if not count:
            return None
        filled += count
    return None if file.read(1) else buffer
