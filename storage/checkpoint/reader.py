"""Opening a published version: the folder and every digest are checked before anything in it is parsed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from storage.checkpoint import manifest as layout
from storage.checkpoint.golden import Golden, read_golden
from storage.checkpoint.manifest import MANIFEST, MAX_MANIFEST_BYTES, Manifest, TableEntry, file_sha256
from storage.checkpoint.strict_json import parse_json
from storage.checkpoint.tables import Shard, read_table
from storage.errors import CheckpointError, ConfigError, IntegrityError, NotFound, UnsafeArtifact
from storage.specs import TableSpec

if TYPE_CHECKING:
    from storage.checkpoint.graph import DenseGraph
    from storage.features import FeatureSpec

MAX_FEATURES_BYTES = 64 << 20


class PublishedVersion:
    """A version on disk, read piece by piece. Made by `open_version`."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path = path
        self.manifest = manifest

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._path

    @property
    def version(self) -> int:
        """Its number."""
        return self.manifest.version

    @property
    def snapshot(self) -> str:
        """Its random identity."""
        return self.manifest.snapshot

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """The tables it holds, with their numbers of rows."""
        return tuple(TableSpec(t.name, t.dim, t.row_type, t.rows) for t in self.manifest.tables)

    @cached_property
    def spec(self) -> FeatureSpec:
        """The feature spec. Raises CheckpointError when this build does not understand it."""
        from storage.features import FeatureSpec

        size = (self.path / layout.FEATURES).stat().st_size
        if size > MAX_FEATURES_BYTES:
            raise UnsafeArtifact(f"{layout.FEATURES}: {size} bytes, at most {MAX_FEATURES_BYTES} are read")
        data = (self.path / layout.FEATURES).read_bytes()
        parse_json(data, what=layout.FEATURES, max_bytes=MAX_FEATURES_BYTES)
        try:
            return FeatureSpec.parse(data)
        except ConfigError as error:
            raise CheckpointError(f"{layout.FEATURES}: {error}") from None

    def shards(self, table: str) -> Iterator[Shard]:
        """A table's rows, shard by shard, in ascending order of ids."""
        return read_table(self.path, self._table(table))

    def table_digest(self, table: str) -> str:
        """A text that is the same for the same rows of a table."""
        digests = {entry.path: entry.sha256 for entry in self.manifest.files}
        return ",".join(digests[path] for path in self._table(table).shards)

    def golden(self) -> Golden:
        """The golden requests and their scores."""
        return read_golden(self.path / layout.GOLDEN, self.spec, self.manifest.golden, self.manifest.graph)

    def graph(self) -> DenseGraph:
        """The dense graph; every call makes a new one with its own weights."""
        from storage.checkpoint.graph import load_graph

        return load_graph(self.path / layout.GRAPH, self.path / layout.WEIGHTS, self.manifest.graph)

    def _table(self, name: str) -> TableEntry:
        for entry in self.manifest.tables:
            if entry.name == name:
                return entry
        raise NotFound(f"{self.path} has no table {name!r}; it has {[entry.name for entry in self.manifest.tables]}")


def open_version(path: Path | str, *, verify: bool = True) -> PublishedVersion:
    """Opens a version folder.

    verify: also compute the digest of every file; names and sizes are always checked. Raises NotFound, IntegrityError
    (a byte changed, a file is missing or extra) or UnsafeArtifact (a content that no publisher of ours writes); the
    message names the file.
    """
    path = Path(path)
    if not path.is_dir():
        raise NotFound(f"{path} is not a version folder")
    sizes = _list_files(path)
    if MANIFEST not in sizes:
        raise IntegrityError(f"{path}: {MANIFEST} is missing; the version was not published to the end")
    if sizes[MANIFEST] > MAX_MANIFEST_BYTES:
        raise UnsafeArtifact(f"{MANIFEST}: {sizes[MANIFEST]} bytes, at most {MAX_MANIFEST_BYTES} are read")
    manifest = Manifest.from_bytes((path / MANIFEST).read_bytes())
    expected = {entry.path: entry for entry in manifest.files}
    for name in sorted(set(sizes) - set(expected) - {MANIFEST}):
        raise IntegrityError(f"{path}: holds {name!r}, which the manifest does not name")
    for name, entry in expected.items():
        if name not in sizes:
            raise IntegrityError(f"{path}: {name!r} is missing")
        if sizes[name] != entry.size:
            raise IntegrityError(f"{path}: {name!r} has {sizes[name]} bytes, published were {entry.size}")
    if verify:
        for name, entry in expected.items():
            if file_sha256(path / name) != entry.sha256:
                raise IntegrityError(f"{path}: {name!r} is not what was published (its sha256 differs)")
    if path.name.isdecimal() and int(path.name) != manifest.version:
        raise IntegrityError(f"{path}: the manifest is that of version {manifest.version}")
    return PublishedVersion(path, manifest)


def _list_files(folder: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for prefix in ("", "tables/"):
        with os.scandir(folder / prefix if prefix else folder) as entries:
            for entry in entries:
                name = prefix + entry.name
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISLNK(mode):
                    raise UnsafeArtifact(f"{folder}: {name!r} is a symbolic link; a version holds plain files only")
                if stat.S_ISDIR(mode):
                    if name != "tables":
                        raise IntegrityError(f"{folder}: holds the folder {name!r}, which no version has")
                    continue
                if not stat.S_ISREG(mode):
                    raise UnsafeArtifact(f"{folder}: {name!r} is not a plain file")
                sizes[name] = entry.stat(follow_symlinks=False).st_size
        if prefix == "" and not (folder / "tables").is_dir():
            raise IntegrityError(f"{folder}: the folder 'tables' is missing")
    return sizes
