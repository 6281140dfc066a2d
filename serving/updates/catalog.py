"""What lies in a model's folder: versions and their deltas, by their manifests. Looked at often, so it is cheap.

A good manifest is read again only when its file is another one. Nothing but manifests is read here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from storage.checkpoint.delta_manifest import DeltaManifest
from storage.checkpoint.deltas import DELTAS, list_deltas, sequence_name
from storage.checkpoint.folder import plain_file
from storage.checkpoint.manifest import MANIFEST, MAX_MANIFEST_BYTES, Manifest
from storage.checkpoint.versions import is_version
from storage.errors import EmberlineError, IntegrityError, ReadError, UnsafeArtifact

T = TypeVar("T", "FoundVersion", "FoundDelta")


@dataclass(frozen=True)
class FoundDelta:
    """A delta in the folder. key: digest of its manifest. error: why the manifest cannot be read."""

    path: Path
    key: str
    version: int
    sequence: int
    snapshot: str = ""
    parent: str = ""
    base: str = ""
    applies_to: frozenset[str] = frozenset()
    error: EmberlineError | None = None

    @property
    def name(self) -> str:
        """As people write it, such as 3.17."""
        return f"{self.version}.{self.sequence}"

    @property
    def ancestors(self) -> frozenset[str]:
        """Snapshots that it was made from."""
        return self.applies_to


@dataclass(frozen=True)
class FoundVersion:
    """A version in the folder.

    ancestors: snapshots that it was made from. equals: one with the same rows. published_unix_ms: 0 when unknown.
    """

    path: Path
    key: str
    version: int
    snapshot: str = ""
    parent: str | None = None
    equals: str | None = None
    ancestors: frozenset[str] = frozenset()
    deltas: tuple[FoundDelta, ...] = ()
    error: EmberlineError | None = None
    published_unix_ms: int = 0

    @property
    def sequence(self) -> int:
        """A version's own sequence."""
        return 0

    @property
    def name(self) -> str:
        """As people write it, such as 3.0."""
        return f"{self.version}.0"


Found = FoundVersion | FoundDelta


@dataclass(frozen=True)
class Catalog:
    """Versions by number. Deltas only of those that were asked for, ascending."""

    versions: Mapping[int, FoundVersion] = field(default_factory=dict)

    def deltas(self, version: int) -> tuple[FoundDelta, ...]:
        """The deltas of a version that are newer than what was asked for, ascending by sequence."""
        found = self.versions.get(version)
        return () if found is None else found.deltas


class ModelFolder:
    """Looks into one model's folder. Remembers the manifests that it has read; one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._versions: dict[Path, tuple[tuple[int, ...], FoundVersion]] = {}
        self._deltas: dict[Path, tuple[tuple[int, ...], FoundDelta]] = {}

    def scan(self, newer_than: Mapping[int, int] | None = None) -> Catalog:
        """What is there now. newer_than: version -> sequence; its deltas after that one are listed.

        Raises OSError or ReadError when the folder, or anything in it, cannot be read now: what is unreadable may not
        be taken for what is not there.
        """
        newer_than = newer_than or {}
        versions: dict[int, FoundVersion] = {}
        seen: set[Path] = set()
        for number in numbered(self.path):
            path = self.path / str(number)
            found = self._look(self._versions, path, seen, partial(_version, path, number))
            if found is None:
                continue
            if number in newer_than:
                found = self._with_deltas(found, newer_than[number], seen)
            versions[number] = found
        for known in (self._versions, self._deltas):
            for path in [path for path in known if path not in seen]:
                del known[path]
        return Catalog(versions)

    def _with_deltas(self, version: FoundVersion, after: int, seen: set[Path]) -> FoundVersion:
        deltas: list[FoundDelta] = []
        for sequence in list_deltas(version.path):
            path = version.path / DELTAS / sequence_name(sequence)
            if sequence > after:
                read = partial(_delta, path, version.version, sequence)
                found = self._look(self._deltas, path, seen, read)
                if found is not None:
                    deltas.append(found)
        return FoundVersion(**{**version.__dict__, "deltas": tuple(deltas)})

    def _look(
        self, known: dict[Path, tuple[tuple[int, ...], T]], path: Path, seen: set[Path], read: Callable[[], T]
    ) -> T | None:
        try:
            mark = _mark(path)
        except (FileNotFoundError, NotADirectoryError):
            return None  # gone since its folder was listed
        seen.add(path)
        before = known.get(path)
        if before is not None and before[0] == mark:
            return before[1]
        try:
            found = read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if found.error is None:  # one that was half written may get its other half without another size or time
            known[path] = (mark, found)
        return found


def numbered(folder: Path) -> list[int]:
    """The versions in a model's folder, ascending."""
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


def _version(path: Path, number: int) -> FoundVersion:
    data = b""
    try:
        data = _manifest_bytes(path)
        manifest = Manifest.from_bytes(data)
        if manifest.version != number:
            raise IntegrityError(f"{path}: the manifest is that of version {manifest.version}")
    except ReadError:
        raise  # nothing is known of it
    except EmberlineError as error:
        return FoundVersion(path, _key(path, data), number, error=error)
    ancestors = {*manifest.descends_from, manifest.parent, manifest.equals} - {None}
    return FoundVersion(
        path,
        manifest.digest,
        number,
        snapshot=manifest.snapshot,
        parent=manifest.parent,
        equals=manifest.equals,
        ancestors=frozenset(filter(None, ancestors)),
        published_unix_ms=manifest.published_unix_ms,
    )


def _delta(path: Path, version: int, sequence: int) -> FoundDelta:
    data = b""
    try:
        data = _manifest_bytes(path)
        manifest = DeltaManifest.from_bytes(data)
        if (manifest.version, manifest.sequence) != (version, sequence):
            raise IntegrityError(f"{path}: the manifest is that of {manifest.version}.{manifest.sequence}")
    except ReadError:
        raise  # nothing is known of it
    except EmberlineError as error:
        return FoundDelta(path, _key(path, data), version, sequence, error=error)
    return FoundDelta(
        path,
        manifest.digest,
        version,
        sequence,
        snapshot=manifest.snapshot,
        parent=manifest.parent,
        base=manifest.base,
        applies_to=frozenset(manifest.applies_to),
    )


def _key(path: Path, manifest: bytes) -> str:
    return hashlib.sha256(manifest or str(path).encode()).hexdigest()
