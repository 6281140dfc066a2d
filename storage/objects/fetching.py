"""Brings published folders from an object store to this machine: several ranges at a time, all checked first.

A folder appears under its name once every file has the digest of its manifest, and the manifest that of head.json.
Until then it has a name that readers skip. Files that are whole stay there, so a download that was cut off goes on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from storage.checkpoint.delta_manifest import DeltaManifest
from storage.checkpoint.folder import check_size
from storage.checkpoint.install import sync_directory
from storage.checkpoint.manifest import Manifest
from storage.checkpoint.signed import MANIFEST, MAX_MANIFEST_BYTES, FileEntry
from storage.errors import IntegrityError, StoreError, UnsafeArtifact
from storage.objects.object_store import ObjectStore
from storage.objects.requests import Stopped
from storage.objects.urls import join

T = TypeVar("T")

#: Bytes of one request.
PIECE_BYTES = 8 << 20
#: Requests at a time, and files that they belong to.
PARALLEL, FILES = 8, 4
#: Folders that are being brought here; readers of a repository skip names with a dot.
UNFINISHED = ".mirror-"


class Pace:
    """Bounds the bytes a second of all downloads of a process. Thread-safe."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._rate = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait(self, count: int, stop: threading.Event) -> None:
        """Waits until so many more bytes may be asked for. Raises Stopped."""
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + count / self._rate
        if stop.wait(begin - now):
            raise Stopped


class Fetcher:
    """Downloads folders of one store, `PARALLEL` requests at a time. Thread-safe."""

    def __init__(self, objects: ObjectStore, pace: Pace | None = None, stop: threading.Event | None = None) -> None:
        """stop: set when what is under way is to be given up."""
        self._objects = objects
        self._pace = pace or Pace(None)
        self._stop = stop or threading.Event()
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="emberline-fetch")
        self._files = ThreadPoolExecutor(FILES, thread_name_prefix="emberline-fetch-file")

    def close(self) -> None:
        """Ends the threads."""
        self._files.shutdown(wait=True, cancel_futures=True)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def folder(
        self,
        prefix: str,
        manifest_sha256: str,
        target: Path,
        *,
        on_bytes: Callable[[int], None] = lambda count: None,
        sync: bool = True,
    ) -> None:
        """Brings the folder at `prefix` to `target`, in whose parent it is collected.

        on_bytes: called with the bytes that have come, from several threads. sync: force it to the disk first. Raises
        IntegrityError when the store holds other bytes than head.json and the manifest say, ObjectStoreError when they
        cannot be read now, StoreError when they cannot be written here.
        """
        kind = DeltaManifest if target.parent.name == "deltas" else Manifest
        found = self._objects.read(join(prefix, MANIFEST))
        assert found is not None
        where = f"{self._objects.url}/{prefix}"
        if len(found.data) > MAX_MANIFEST_BYTES:
            raise UnsafeArtifact(f"{where}/{MANIFEST} has over {MAX_MANIFEST_BYTES} bytes")
        if hashlib.sha256(found.data).hexdigest() != manifest_sha256:
            raise IntegrityError(f"{where}/{MANIFEST} is not the one that head.json names")
        manifest = kind.from_bytes(found.data)
        partial = target.parent / f"{UNFINISHED}{target.name}-{manifest_sha256[:16]}"
        try:
            (partial / "tables").mkdir(parents=True, exist_ok=True)
            for entry in manifest.files:
                check_size(entry.path, entry.size)
            _each(
                self._files,
                lambda entry: self._file(join(prefix, entry.path), entry, partial / entry.path, on_bytes, sync),
                manifest.files,
            )
            _write(partial / MANIFEST, found.data, sync)
            if not any((partial / "tables").iterdir()):
                (partial / "tables").rmdir()
            elif sync:
                sync_directory(partial / "tables")
            if sync:
                sync_directory(partial)
            _install(partial, target, sync)
        except OSError as error:
            raise StoreError(f"{target}: cannot be written: {error.strerror or error}") from error

    def _file(self, key: str, entry: FileEntry, path: Path, on_bytes: Callable[[int], None], sync: bool) -> None:
        if path.exists():  # it was checked before it got its name
            on_bytes(entry.size)
            return
        unfinished = path.with_name(f"{path.name}.part")
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.truncate(descriptor, entry.size)

            def piece(start: int) -> None:
                length = min(PIECE_BYTES, entry.size - start)
                self._pace.wait(length, self._stop)
                if self._stop.is_set():
                    raise Stopped
                data = memoryview(self._objects.read_range(key, start, length))
                if len(data) != length:
                    raise IntegrityError(
                        f"{self._objects.url}/{key}: ends after {start + len(data)} bytes, published were {entry.size}"
                    )
                _write_at(descriptor, data, start)
                on_bytes(length)

            _each(self._pool, piece, range(0, entry.size, PIECE_BYTES))
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                file.seek(0)
                if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                    raise IntegrityError(f"{self._objects.url}/{key}: is not what was published (its sha256 differs)")
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(unfinished, path)


def remove(folder: Path) -> None:
    """Removes a folder of a repository in one step for its readers."""
    hidden = folder.parent / f"{UNFINISHED}gone-{folder.name}-{os.getpid()}-{time.monotonic_ns()}"
    try:
        os.rename(folder, hidden)
    except FileNotFoundError:
        return
    shutil.rmtree(hidden, ignore_errors=True)


def leftovers(parent: Path) -> Iterator[Path]:
    """Yields the folders in `parent` that downloads left unfinished."""
    try:
        with os.scandir(parent) as entries:
            yield from [Path(entry.path) for entry in entries if entry.name.startswith(UNFINISHED)]
    except (FileNotFoundError, NotADirectoryError):
        return


def _each(pool: ThreadPoolExecutor, work: Callable[[T], None], items: Iterable[T]) -> None:
    """Does the work for each item; after a failure no more is begun, and what is under way has ended."""
    futures = [pool.submit(work, item) for item in items]
    try:
        for future in futures:
            future.result()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


def _install(partial: Path, target: Path, sync: bool) -> None:
    if target.exists():  # another snapshot has the number now
        remove(target)
    os.rename(partial, target)
    if sync:
        sync_directory(target.parent)


def _write(path: Path, data: bytes, sync: bool) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def _write_at(descriptor: int, data: memoryview, start: int) -> None:
    while len(data):
        count = os.pwrite(descriptor, data, start)
        data, start = data[count:], start + count
