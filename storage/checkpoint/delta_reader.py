"""Opens a published delta with the checks of a version, and checks that rows and removed ids do not contradict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from storage.checkpoint.delta_manifest import REMOVED, DeltaManifest
from storage.checkpoint.deltas import DELTAS, is_sequence
from storage.checkpoint.fingerprint import fingerprint_hex, weights_fingerprint
from storage.checkpoint.finite import LEARNED
from storage.checkpoint.folder import VerifiedFolder, check_listing, list_files, read_manifest
from storage.checkpoint.golden import Golden, read_golden
from storage.checkpoint.manifest import GOLDEN, WEIGHTS, GraphEntry
from storage.checkpoint.published import Published
from storage.checkpoint.signed import MANIFEST
from storage.checkpoint.tables import Shard, ascending, first_common, read_table
from storage.checkpoint.tensors import TensorFile
from storage.checkpoint.weight_difference import DIFFERENCE, changed_weights
from storage.errors import IntegrityError, LineageError, NotFound, ParityError, UnsafeArtifact
from storage.parallel import Pace
from storage.paths import local_path

if TYPE_CHECKING:
    import torch

    from storage.features import FeatureSpec


class PublishedDelta(Published[DeltaManifest]):
    """A delta on disk, which `open_delta` makes; `tables` counts its new and changed rows."""

    @property
    def sequence(self) -> int:
        """Its number within the version."""
        return self.manifest.sequence

    @property
    def parent(self) -> str:
        """The snapshot that the trainer continued from."""
        return self.manifest.parent

    @property
    def applies_to(self) -> tuple[str, ...]:
        """The snapshots that it turns into `snapshot`; the parent is one of them."""
        return self.manifest.applies_to

    @property
    def base(self) -> str:
        """The snapshot of the version that it belongs to."""
        return self.manifest.base

    def shards(self, table: str) -> Iterator[Shard]:
        """Yields a table's new and changed rows, shard by shard, in ascending order of ids."""
        entry, removed = self._table(table), self.removed(table)
        for each in read_table(self._folder, entry.spec, entry.shards):
            if (both := first_common(each.shard.ids, removed)) is not None:
                raise IntegrityError(f"table {table!r}: the id {both} is changed and removed by one delta")
            yield each.shard

    def removed(self, table: str) -> np.ndarray:
        """Returns the ids that are no longer in a table: (m,) int64 ascending, read-only."""
        return self._removed[self._table(table).name]

    @property
    def dense_against(self) -> str:
        """The snapshot whose weights `weights` needs; "" when the delta has all of them."""
        return "" if self.manifest.dense is None else self.manifest.dense.against

    def weights(
        self, before: Mapping[str, torch.Tensor] | None = None, *, check: bool = True, pace: Pace | None = None
    ) -> dict[str, torch.Tensor]:
        """Returns all dense weights, by their names in dense.safetensors; `DenseGraph.with_weights` takes them.

        before: those of the snapshot `dense_against`, which stay as they are; weights that are the same are shared with
        the result. check: compare the fingerprint of what they make, unless the caller does. pace: as for `map_paced`.

        Raises ParityError when the fingerprint differs, as where `before` is not what it should be, and LineageError
        without weights that are needed.
        """
        from storage.checkpoint.weights import read_weights, with_difference

        if self.manifest.dense is None:
            return read_weights(self._folder.read(WEIGHTS), finite=LEARNED)
        if before is None:
            raise LineageError(f"{self.path}: its weights are a difference to those of {self.dense_against}")
        found = with_difference(self._folder.read(DIFFERENCE), before, finite=LEARNED, pace=pace)
        if check and (got := fingerprint_hex(weights_fingerprint(found))) != self.manifest.dense_fingerprint:
            raise ParityError(
                f"{self.path}: the dense weights are not the trainer's: their fingerprint is {got}, published was "
                f"{self.manifest.dense_fingerprint}; is what they are a difference to {self.dense_against}?"
            )
        return found

    def changed_weights(self) -> list[str]:
        """Returns the names of the weights that its dense difference changes. Raises LineageError where it has all."""
        if self.manifest.dense is None:
            raise LineageError(f"{self.path}: it has all dense weights")
        return changed_weights(self._folder.read(DIFFERENCE))

    def golden(self, spec: FeatureSpec, graph: GraphEntry) -> Golden:
        """Reads the golden requests and their scores. spec, graph: those of the version (`manifest.graph`)."""
        return read_golden(self._folder.read(GOLDEN), spec, self.manifest.golden, graph)

    @cached_property
    def _removed(self) -> dict[str, np.ndarray]:
        file = TensorFile.from_bytes(REMOVED, self._folder.read(REMOVED))
        names = [entry.name for entry in self.manifest.tables]
        if sorted(file.arrays) != sorted(names):
            raise UnsafeArtifact(f"{REMOVED}: expected one tensor for each of {names}, got {sorted(file.arrays)}")
        for entry in self.manifest.tables:
            ids = file.arrays[entry.name]
            if file.dtypes[entry.name] != "I64" or ids.shape != (entry.removed,):
                raise UnsafeArtifact(
                    f"{REMOVED}: {entry.name!r} is {file.dtypes[entry.name]} {list(ids.shape)}, "
                    f"expected I64 [{entry.removed}]"
                )
            if not ascending(ids):
                raise IntegrityError(f"{REMOVED}: the ids of {entry.name!r} are not strictly ascending")
        return file.arrays


def open_delta(path: Path | str, *, verify: bool = True) -> PublishedDelta:
    """Opens a delta's folder, in its version or elsewhere (a server keeps links of its own).

    verify: compute the digest of every file now; without it each file is checked when it is read. Names and sizes are
    always checked. Raises NotFound, IntegrityError or UnsafeArtifact as `open_version` does. The caller decides whether
    the delta continues what is served: see `applies_to`.
    """
    path = local_path(path, "path")
    if path.is_symlink():
        raise UnsafeArtifact(f"{path}: is a symbolic link; a delta is a folder of its own")
    if not path.is_dir():
        raise NotFound(f"{path} is not a delta's folder")
    sizes = list_files(path)
    manifest = DeltaManifest.from_bytes(read_manifest(path, sizes, "delta"))
    check_listing(path, sizes, manifest.files)
    delta = PublishedDelta(path, manifest, sizes[MANIFEST])
    if verify:
        VerifiedFolder(path, manifest.files).check()
    if path.parent.name == DELTAS and is_sequence(path.name):
        if int(path.name) != manifest.sequence:
            raise IntegrityError(f"{path}: the manifest is that of sequence {manifest.sequence}")
        version = path.parent.parent.name
        if version.isdecimal() and int(version) != manifest.version:
            raise IntegrityError(f"{path}: the manifest is that of a delta of version {manifest.version}")
    return delta
