"""Reads what is in a model's folder: versions and their deltas, by their manifests.

The folder is looked at often, so that is cheap: a good manifest is read again only when its file is another one, and
nothing but manifests is read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from storage.checkpoint.delta_manifest import DeltaManifest
from storage.checkpoint.deltas import DELTAS, list_deltas, sequence_name
from storage.checkpoint.folder import plain_file
from storage.checkpoint.manifest import MANIFEST, MAX_MANIFEST_BYTES, Manifest
from storage.checkpoint.versions import is_version
from storage.errors import EmberlineError, IntegrityError, ReadError, UnsafeArtifact


@dataclass(frozen=True)
class Found:
    """A version or a delta in the folder, as its manifest describes it."""

    path: Path
    #: Digest of the manifest.
    key: str
    version: int
    #: 0 for a version.
    sequence: int = 0
    #: Its id; "" when the manifest cannot be read.
    snapshot: str = ""
    #: The snapshot that it was published after.
    parent: str | None = None
    #: Snapshot of the version that a delta belongs to.
    base: str = ""
    #: Snapshots that it was made from; a delta applies to each of them.
    ancestors: frozenset[str] = frozenset()
    #: A snapshot with the same rows as a version.
    equals: str | None = None
    #: Deltas of a version, ascending.
    deltas: tuple[Found, ...] = ()
    #: Why the manifest cannot be read.
    error: EmberlineError | None = None
    #: 0 when unknown.
    published_unix_ms: int = 0
    #: When ids were last forgotten before a version was published; 0 if they never were.
    erased_unix_ms: int = 0

    @property
    def is_delta(self) -> bool:
        """True if it is a delta and no version."""
        return self.sequence > 0

    @property
    def name(self) -> str:
        """The name that people write, such as 3.17; a version is 3.0."""
        return f"{self.version}.{self.sequence}"


@dataclass(frozen=True)
class Catalog:
    """The versions in a folder by number, with the deltas of those that were asked for, ascending."""

    versions: Mapping[int, Found] = field(default_factory=dict)

    def deltas(self, version: int) -> tuple[Found, ...]:
        """Returns the deltas of a version that are newer than what was asked for, ascending by sequence."""
        found = self.versions.get(version)
        return () if found is None else found.deltas


class ModelFolder:
    """Looks into one model's folder, and remembers the manifests that it has read.

    Not thread-safe: one thread uses it at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[Path, tuple[tuple[int, ...], Found]] = {}

    def scan(self, newer_than: Mapping[int, int] | None = None) -> Catalog:
        """Returns what is in the folder now. newer_than: version -> sequence; its deltas after that one are listed.

        Raises OSError or ReadError when the folder, or anything in it, cannot be read now: what is unreadable must not
        be taken for missing.
        """
        newer_than = newer_than or {}
        versions: dict[int, Found] = {}
        seen: set[Path] = set()
        for number in numbered(self.path):
            path = self.path / str(number)
            found = self._look(path, seen, partial(_version, path, number))
            if found is None:
                continue
            if number in newer_than:
                found = self._with_deltas(found, newer_than[number], seen)
            versions[number] = found
        self._known = {path: known for path, known in self._known.items() if path in seen}
        return Catalog(versions)

    def _with_deltas(self, version: Found, after: int, seen: set[Path]) -> Found:
        deltas: list[Found] = []
        for sequence in list_deltas(version.path):
            path = version.path / DELTAS / sequence_name(sequence)
            if sequence > after:
                found = self._look(path, seen, partial(_delta, path, version.version, sequence))
                if found is not None:
                    deltas.append(found)
        return replace(version, deltas=tuple(deltas))

    def _look(self, path: Path, seen: set[Path], read: Callable[[], Found]) -> Found | None:
        try:
            mark = _mark(path)
        except (FileNotFoundError, NotADirectoryError):
            return None  # gone since its folder was listed
        seen.add(path)
        before = self._known.get(path)
        if before is not None and before[0] == mark:
            return before[1]
        try:
            found = read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if found.error is None:  # a half-written file may be completed without a change of size or time
            self._known[path] = (mark, found)
        return found


def numbered(folder: Path) -> list[int]:
    """Returns the versions in a model's folder, ascending."""
    with os.scandir(folder) as entries:
        return sorted(int(entry.name) for entry in entries if is_version(entry.name) and entry.is_dir())


def _mark(path: Path) -> tuple[int, ...]:
    folder = os.stat(path)
    try:
        status = os.stat(path / MANIFEST)
    except FileNotFoundError:
        os.stat(path)  # raises when the whole folder has gone meanwhile
        return (folder.st_ino, folder.st_mtime_ns)
    return (folder.st_ino, status.st_ino, status.st_size, status.st_mtime_ns)


def _manifest_bytes(path: Path) -> bytes:
    try:
        with plain_file(path / MANIFEST) as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        os.stat(path)  # raises when the whole folder has gone meanwhile: that is nothing to refuse
        raise IntegrityError(f"{path}: {MANIFEST} is missing; it was not published to the end") from None
    if len(data) > MAX_MANIFEST_BYTES:
        raise UnsafeArtifact(f"{path}: {MANIFEST} has over {MAX_MANIFEST_BYTES} bytes")
    return data


def _version(path: Path, number: int) -> Found:
    data = b""
    try:
        data = _manifest_bytes(path)
        manifest = Manifest.from_bytes(data)
        if manifest.version != number:
            raise IntegrityError(f"{path}: the manifest is that of version {manifest.version}")
    except ReadError:
        raise  # nothing is known of it
    except EmberlineError as error:
        return Found(path, _key(path, data), number, error=error)
    ancestors = {*manifest.descends_from, manifest.parent, manifest.equals} - {None}
    return Found(
        path,
        manifest.digest,
        number,
        snapshot=manifest.snapshot,
        parent=manifest.parent,
        equals=manifest.equals,
        ancestors=frozenset(filter(None, ancestors)),
        published_unix_ms=manifest.published_unix_ms,
        erased_unix_ms=manifest.erased_unix_ms,
    )


def _delta(path: Path, version: int, sequence: int) -> Found:
    data = b""
    try:
        data = _manifest_bytes(path)
        manifest = DeltaManifest.from_bytes(data)
        if (manifest.version, manifest.sequence) != (version, sequence):
            raise IntegrityError(f"{path}: the manifest is that of {manifest.version}.{manifest.sequence}")
    except ReadError:
        raise  # nothing is known of it
    except EmberlineError as error:
        return Found(path, _key(path, data), version, sequence, error=error)
    return found_delta(path, manifest)


def found_delta(path: Path, manifest: DeltaManifest) -> Found:
    """Returns the description of a delta whose manifest was read."""
    return Found(
        path,
        manifest.digest,
        manifest.version,
        manifest.sequence,
        snapshot=manifest.snapshot,
        parent=manifest.parent,
        base=manifest.base,
        ancestors=frozenset(manifest.applies_to),
    )


def _key(path: Path, manifest: bytes) -> str:
    return hashlib.sha256(manifest or str(path).encode()).hexdigest()
