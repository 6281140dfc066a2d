"""Publishes a delta, the changes since a snapshot, as a folder of its own beside the version's files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from storage.checkpoint.delta_manifest import REMOVED, DeltaManifest, DeltaTableEntry, DenseEntry
from storage.checkpoint.deltas import DELTAS, sequence_name
from storage.checkpoint.event_times import EventTimes
from storage.checkpoint.fingerprint import agreed_fingerprint, table_fingerprint, weights_fingerprint
from storage.checkpoint.finite import LEARNED, weight_fault
from storage.checkpoint.folder import check_size, read_manifest
from storage.checkpoint.golden import Golden, write_golden
from storage.checkpoint.install import move_into_place, publishing, sync_directory
from storage.checkpoint.manifest import GOLDEN, WEIGHTS, FileEntry, GraphOutput, Manifest
from storage.checkpoint.signed import MANIFEST
from storage.checkpoint.tables import SHARD_BYTES, TableData, ascending, first_common, write_table
from storage.checkpoint.tensors import TensorFile, WrittenFile, write_bytes, write_tensors
from storage.checkpoint.weight_difference import DIFFERENCE, read_difference, write_difference
from storage.errors import CheckpointError, LineageError, NotFound
from storage.initializers import ABSENT_ZEROS, AbsentRows
from storage.paths import local_path
from storage.specs import check_row_type


@dataclass(frozen=True)
class DeltaTable:
    """The changes that a delta makes to one table."""

    name: str
    dim: int
    #: (n,) int64 strictly ascending: the new and changed ids.
    ids: np.ndarray
    #: (n, dim) float32, finite.
    rows: np.ndarray
    #: (n,) uint8, logarithmic use counts.
    freq: np.ndarray
    #: (m,) int64 strictly ascending, none of `ids`; ids that the server does not have are allowed.
    removed: np.ndarray
    #: The row type of the version.
    row_type: str = "fp32"
    #: What ids without a row read as; that of the version, which alone says it.
    absent: AbsentRows = ABSENT_ZEROS

    def __post_init__(self) -> None:
        _ = self.changed
        removed = self.removed
        if removed.dtype != np.int64 or removed.ndim != 1:
            raise CheckpointError(
                f"table {self.name!r}: removed must be int64 [m], got {removed.dtype} {list(removed.shape)}"
            )
        if not ascending(removed):
            raise CheckpointError(f"table {self.name!r}: removed must be strictly ascending; sort it, each id once")
        if (both := first_common(self.ids, removed)) is not None:
            raise CheckpointError(f"table {self.name!r}: the id {both} stands both in ids and in removed")

    @cached_property
    def changed(self) -> TableData:
        """The new and changed rows."""
        return TableData(self.name, self.dim, self.ids, self.rows, self.freq, self.row_type, self.absent)


@dataclass(frozen=True)
class EarlierWeights:
    """Holds the weights to which a delta's are written as a difference."""

    #: The parent, or the version's snapshot; a delta that applies to several takes the latter.
    snapshot: str
    #: Differences behind each other that make them; 0 for a full copy.
    depth: int
    #: By their names in dense.safetensors; bfloat16 as uint16.
    weights: Mapping[str, np.ndarray]


def write_delta(
    version_dir: Path | str,
    *,
    snapshot: str,
    base: str,
    parent: str,
    applies_to: Sequence[str],
    from_sequence: int,
    sequence: int,
    tables: Sequence[DeltaTable],
    weights: Mapping[str, np.ndarray],
    weight_dtypes: Mapping[str, str],
    weights_before: EarlierWeights | None = None,
    golden: Golden,
    outputs: tuple[GraphOutput, ...],
    fingerprints: Mapping[str, int] | None = None,
    dense_fingerprint: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    events: EventTimes | None = None,
    created_unix_ms: int | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Publishes a delta of the version in `version_dir` and returns its folder, deltas/NNNNNN.

    snapshot: its own random identity, 32 hex digits. base: that of the version. parent: the snapshot that the trainer
    continued from, one of applies_to: the snapshots that this patch turns into `snapshot`. The rows cover all changes
    after from_sequence, up to `sequence`. weights: exactly those of the version, by their names in its
    dense.safetensors; weight_dtypes: safetensors names where numpy's type does not say it. weights_before:
    write the difference to those, where it is smaller. outputs: the graph's.
    fingerprints: by table, computed by the trainer from its own tables, and dense_fingerprint from its own module:
    arrays given here that do not have them are refused; None computes them from the arrays. events: the times of the
    rows that it was trained on. With created_unix_ms given
    the same parts make the same bytes. Raises CheckpointError when the sequence is taken or the parts do not fit the
    version, LineageError when `base` is not the version's snapshot, ParityError for another fingerprint than the
    trainer's. Nothing is left behind then.
    """
    version_dir = local_path(version_dir, "version_dir")
    version = _read_version(version_dir)
    if version.snapshot != base:
        raise LineageError(f"{version_dir} is the snapshot {version.snapshot}; this delta belongs to {base}")
    fingerprints = fingerprints or {}
    _check_tables(version, tables, fingerprints)
    _check_weights(version_dir, weights, weight_dtypes)
    if outputs != version.graph.outputs:
        raise CheckpointError(f"golden: the outputs {[o.name for o in outputs]} are not those of {version_dir}'s graph")

    deltas = _deltas_folder(version_dir)
    target = deltas / sequence_name(sequence)
    if os.path.lexists(target):
        raise _taken(target)
    with publishing(deltas) as folder:
        files: list[FileEntry] = []

        def record(path: str, written: WrittenFile) -> None:
            check_size(path, written.size)
            files.append(FileEntry(path=path, size=written.size, sha256=written.sha256))

        dense = _write_weights(folder, weights, weight_dtypes, weights_before, record)
        record(GOLDEN, write_golden(folder / GOLDEN, golden, outputs))
        record(REMOVED, write_tensors(folder / REMOVED, {table.name: table.removed for table in tables}))
        if any(len(table.ids) for table in tables):
            (folder / "tables").mkdir()
        entries = []
        for table in tables:
            shards = write_table(folder, table.changed, shard_bytes=shard_bytes) if len(table.ids) else []
            files.extend(shards)
            written = table_fingerprint(table.ids, table.changed.encoded, table.removed)
            entries.append(
                DeltaTableEntry(
                    name=table.name,
                    dim=table.dim,
                    row_type=check_row_type(table.row_type),
                    rows=len(table.ids),
                    removed=len(table.removed),
                    shards=tuple(shard.path for shard in shards),
                    fingerprint=agreed_fingerprint(f"table {table.name!r}", written, fingerprints.get(table.name)),
                )
            )
        manifest = DeltaManifest(
            snapshot=snapshot,
            parent=parent,
            applies_to=tuple(applies_to),
            version=version.version,
            base=base,
            sequence=sequence,
            from_sequence=from_sequence,
            created_unix_ms=time.time_ns() // 1_000_000 if created_unix_ms is None else created_unix_ms,
            files=tuple(files),
            tables=tuple(entries),
            dense_fingerprint=agreed_fingerprint(
                "dense weights", _fingerprint_of(folder, weights, weights_before, dense), dense_fingerprint
            ),
            dense=dense,
            golden=golden.entry(),
            events=events,
            metadata=dict(metadata or {}),
        )
        write_bytes(folder / MANIFEST, manifest.to_bytes())
        if (folder / "tables").is_dir():
            sync_directory(folder / "tables")
        sync_directory(folder)
        if not move_into_place(folder, target):
            raise _taken(target)
    return target


def _write_weights(
    folder: Path,
    weights: Mapping[str, np.ndarray],
    dtypes: Mapping[str, str],
    before: EarlierWeights | None,
    record: Callable[[str, WrittenFile], None],
) -> DenseEntry | None:
    """Writes the weights, or their difference where it is smaller; returns what that is a difference to."""
    written = None if before is None else write_difference(folder / DIFFERENCE, before.weights, weights)
    if before is None or written is None:
        record(WEIGHTS, write_tensors(folder / WEIGHTS, weights, dtypes))
        return None
    record(DIFFERENCE, written)
    return DenseEntry(against=before.snapshot, depth=before.depth + 1)


def _fingerprint_of(
    folder: Path, weights: Mapping[str, np.ndarray], before: EarlierWeights | None, dense: DenseEntry | None
) -> int:
    """Returns the fingerprint of the weights that a reader will have: of a difference, those that it makes."""
    if dense is None or before is None:
        return weights_fingerprint(weights)
    made = read_difference(np.memmap(folder / DIFFERENCE, np.uint8, mode="r"), before.weights)
    return weights_fingerprint({**before.weights, **made})


def _read_version(version_dir: Path) -> Manifest:
    path = version_dir / MANIFEST
    if not path.is_file():
        raise NotFound(f"{version_dir} is not a published version; a delta lies in the version that it changes")
    return Manifest.from_bytes(read_manifest(version_dir, {MANIFEST: path.stat().st_size}, "version"))


def _check_tables(version: Manifest, tables: Sequence[DeltaTable], fingerprints: Mapping[str, int]) -> None:
    own = {table.name: table for table in version.tables}
    names = [table.name for table in tables]
    if len(set(names)) != len(names):
        raise CheckpointError(f"tables: a name stands twice in {names}")
    for name in sorted(set(fingerprints) - set(names)):
        raise CheckpointError(f"fingerprints: names {name!r}, which is not among the tables {names}")
    for table in tables:
        if table.name not in own or own[table.name].dim != table.dim:
            dims = {name: entry.dim for name, entry in own.items()}
            raise CheckpointError(
                f"table {table.name!r} of dim {table.dim} is not in the version, whose tables (and dims) are {dims}; "
                "publish a version instead"
            )
        if own[table.name].row_type != table.row_type:
            raise CheckpointError(
                f"table {table.name!r}: the delta's rows are {table.row_type}, the version's are "
                f"{own[table.name].row_type}; a delta keeps the row types of its version, so publish a version instead"
            )
        if own[table.name].spec.absent != table.absent:
            raise CheckpointError(
                f"table {table.name!r}: ids without a row are to read as {table.absent}, in the version they read as "
                f"{own[table.name].spec.absent}; a delta cannot change that, so publish a version instead"
            )


def _check_weights(version_dir: Path, weights: Mapping[str, np.ndarray], dtypes: Mapping[str, str]) -> None:
    published = TensorFile.open(version_dir / WEIGHTS)
    if set(weights) != set(published.arrays):
        wrong = sorted(set(weights) ^ set(published.arrays))
        raise CheckpointError(f"weights: {wrong[0]!r} is not in both the version and the delta; publish a version")
    for name, array in weights.items():
        own, dtype = published.arrays[name], dtypes.get(name, "")
        if (
            array.shape != own.shape
            or array.dtype != own.dtype
            or (dtype == "BF16") != (published.dtypes[name] == "BF16")
        ):
            raise CheckpointError(
                f"weight {name!r} is {dtype or array.dtype} {list(array.shape)}, "
                f"published were {published.dtypes[name]} {list(own.shape)}; publish a version instead"
            )
        if (fault := weight_fault(array, dtype, infinity=not name.startswith(LEARNED))) is not None:
            raise CheckpointError(f"weight {name!r} {fault}; the training went wrong")


def _deltas_folder(version_dir: Path) -> Path:
    deltas = version_dir / DELTAS
    try:
        if not deltas.is_symlink() and not deltas.is_dir():
            deltas.mkdir(exist_ok=True)
            sync_directory(version_dir)
    except OSError as error:
        raise CheckpointError(f"publishing to {deltas} failed: {error}") from error
    if deltas.is_symlink():
        raise CheckpointError(f"{deltas} is a symbolic link; the deltas of a version lie in the version")
    return deltas


def _taken(target: Path) -> CheckpointError:
    return CheckpointError(f"{target} exists; published deltas never change and a sequence is used once")
