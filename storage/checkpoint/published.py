"""Holds the common parts of a published version and delta: a folder, its manifest, tables with row counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from storage.checkpoint.delta_manifest import DeltaManifest, DeltaTableEntry
from storage.checkpoint.folder import VerifiedFolder
from storage.checkpoint.manifest import Manifest, TableEntry
from storage.errors import NotFound
from storage.specs import TableSpec

M = TypeVar("M", Manifest, DeltaManifest)


class Published(Generic[M]):
    """A published folder, read piece by piece, each piece checked as it is read."""

    def __init__(self, path: Path, manifest: M, manifest_bytes: int = 0) -> None:
        self._path = path
        self._manifest_bytes = manifest_bytes
        self._folder = VerifiedFolder(path, manifest.files)
        self.manifest: M = manifest

    @property
    def path(self) -> Path:
        """The path of its folder."""
        return self._path

    @property
    def version(self) -> int:
        """The number of the version that it is, or belongs to."""
        return self.manifest.version

    @property
    def snapshot(self) -> str:
        """The random identity of the snapshot that it is, or leads to."""
        return self.manifest.snapshot

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """The tables that it names, with the numbers of rows that it holds."""
        return tuple(entry.spec for entry in self.manifest.tables)

    def table(self, name: str) -> TableSpec:
        """Returns the table of this name. Raises NotFound."""
        return self._table(name).spec

    @property
    def size_bytes(self) -> int:
        """Bytes of its files; the deltas of a version are not counted."""
        return self._manifest_bytes + sum(entry.size for entry in self.manifest.files)

    def check(self, on_piece: Callable[[], None] = lambda: None) -> None:
        """Computes every digest. on_piece: called after each MiB. Raises IntegrityError that names the file."""
        self._folder.check(on_piece)

    def _table(self, name: str) -> TableEntry | DeltaTableEntry:
        for entry in self.manifest.tables:
            if entry.name == name:
                return entry
        raise NotFound(f"{self.path} has no table {name!r}; it has {[entry.name for entry in self.manifest.tables]}")
