"""Opens a published version: checks the folder before anything in it is parsed, and every byte before it is parsed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from storage.checkpoint import manifest as layout
from storage.checkpoint.deltas import DELTAS
from storage.checkpoint.fingerprint import MASK, fingerprint_hex
from storage.checkpoint.folder import check_listing, list_files, read_manifest
from storage.checkpoint.golden import Golden, read_golden
from storage.checkpoint.manifest import MANIFEST, Manifest
from storage.checkpoint.published import Published
from storage.checkpoint.strict_json import parse_json
from storage.checkpoint.tables import Shard, read_table
from storage.checkpoint.uses import Uses, read_uses
from storage.errors import CheckpointError, ConfigError, IntegrityError, NotFound, ParityError
from storage.paths import local_path

if TYPE_CHECKING:
    import torch

    from storage.checkpoint.graph import DenseGraph
    from storage.features import FeatureSpec

MAX_FEATURES_BYTES = 64 << 20


class PublishedVersion(Published[Manifest]):
    """A version on disk, which `open_version` makes."""

    def __init__(self, path: Path, manifest: Manifest, manifest_bytes: int = 0, threads: int = 1) -> None:
        super().__init__(path, manifest, manifest_bytes)
        self._threads = threads
        self._compared: set[str] = set()

    @cached_property
    def spec(self) -> FeatureSpec:
        """The feature spec. Raises CheckpointError when this build does not understand it."""
        from storage.features import FeatureSpec

        data = self._folder.read(layout.FEATURES).tobytes()
        parse_json(data, what=layout.FEATURES, max_bytes=MAX_FEATURES_BYTES)
        try:
            return FeatureSpec.parse(data)
        except ConfigError as error:
            raise CheckpointError(f"{layout.FEATURES}: {error}") from None

    def shards(self, table: str) -> Iterator[Shard]:
        """Yields a table's rows, shard by shard, in ascending order of ids.

        The first time that a table is read to its end, its rows are compared with the trainer's fingerprint of them.
        Raises ParityError when they differ.
        """
        entry = self._table(table)
        compared = bool(entry.fingerprint) and table not in self._compared
        total = 0
        for each in read_table(self._folder, entry.spec, entry.shards, threads=self._threads, fingerprints=compared):
            total += each.fingerprint
            yield each.shard
        if not compared:
            return
        if (found := fingerprint_hex(total & MASK)) != entry.fingerprint:
            raise ParityError(
                f"{self._path}: table {table!r}: its rows are not the trainer's: their fingerprint is {found}, "
                f"published was {entry.fingerprint}; the version is not served"
            )
        self._compared.add(table)

    def uses(self, table: str) -> Iterator[Uses]:
        """Yields ids and use counts of a table as hints: their digests are not checked."""
        return read_uses(self._path, self._table(table).shards)

    @property
    def equals(self) -> str | None:
        """The snapshot that it is a compaction of; None for any other version."""
        return self.manifest.equals

    def table_digest(self, table: str) -> str:
        """Returns a text that is the same for the same rows of a table."""
        digests = {entry.path: entry.sha256 for entry in self.manifest.files}
        return ",".join(digests[path] for path in self._table(table).shards)

    def golden(self) -> Golden:
        """Reads the golden requests and their scores."""
        data = self._folder.read(layout.GOLDEN)
        return read_golden(data, self.spec, self.manifest.golden, self.manifest.graph)

    def computation(self) -> list[object]:
        """Returns what its dense graph computes with its weights, to be compared (`GraphDocument.computation`)."""
        from storage.checkpoint.archive import MAX_GRAPH_BYTES, unpack_graph
        from storage.checkpoint.document import parse_document

        archive = self._folder.read(layout.GRAPH).tobytes()
        return parse_document(unpack_graph(layout.GRAPH, archive), max_bytes=MAX_GRAPH_BYTES).computation()

    def graph(self) -> DenseGraph:
        """Returns the dense graph; every call makes a new one with its own weights."""
        from storage.checkpoint.graph import load_graph

        archive = self._folder.read(layout.GRAPH).tobytes()
        return load_graph(archive, self._folder.read(layout.WEIGHTS), self.manifest.graph)

    def weights(self) -> dict[str, torch.Tensor]:
        """Returns the dense weights and constants by their names in dense.safetensors."""
        from storage.checkpoint.weights import read_weights

        return read_weights(self._folder.read(layout.WEIGHTS))


def open_version(path: Path | str, *, verify: bool = True, threads: int = 1) -> PublishedVersion:
    """Opens a version folder.

    verify: compute the digest of every file now; without it each file is checked when it is read. Names and sizes are
    always checked. threads: number of threads that read, hash and check shards of a table side by side. A `deltas`
    folder beside its files is no part of the version. Raises NotFound, IntegrityError (a byte changed, a file is
    missing or extra) or UnsafeArtifact (a content that no publisher of ours writes); the message names the file.
    """
    path = local_path(path, "path")
    if not path.is_dir():
        raise NotFound(f"{path} is not a version folder")
    sizes = list_files(path, ignored=frozenset({DELTAS}))
    manifest = Manifest.from_bytes(read_manifest(path, sizes, "version"))
    check_listing(path, sizes, manifest.files)
    version = PublishedVersion(path, manifest, sizes[MANIFEST], threads)
    if verify:
        version.check()
    if path.name.isdecimal() and int(path.name) != manifest.version:
        raise IntegrityError(f"{path}: the manifest is that of version {manifest.version}")
    return version
