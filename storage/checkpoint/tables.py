"""Rows of embedding tables in a published version: sorted shards, written and read one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.checkpoint.manifest import FileEntry, TableEntry, shard_paths
from storage.checkpoint.tensors import TensorFile, write_tensors
from storage.errors import CheckpointError, IntegrityError, UnsafeArtifact
from storage.specs import TableSpec

SHARD_BYTES = 128 << 20
_TENSORS = {"ids": "I64", "rows": "F32", "freq": "U8"}


@dataclass(frozen=True)
class TableData:
    """One table as it is published.

    ids: (n,) int64, strictly ascending. rows: (n, dim) float32. freq: (n,) uint8, logarithmic use count.
    """

    name: str
    dim: int
    ids: np.ndarray
    rows: np.ndarray
    freq: np.ndarray

    def __post_init__(self) -> None:
        TableSpec(self.name, self.dim)
        count = len(self.ids)
        for what, array, dtype, shape in (
            ("ids", self.ids, np.int64, (count,)),
            ("rows", self.rows, np.float32, (count, self.dim)),
            ("freq", self.freq, np.uint8, (count,)),
        ):
            if array.dtype != dtype or array.shape != shape:
                raise CheckpointError(
                    f"table {self.name!r}: {what} must be {np.dtype(dtype)} {list(shape)}, "
                    f"got {array.dtype} {list(array.shape)}"
                )
        if not _ascending(self.ids):
            raise CheckpointError(f"table {self.name!r}: ids must be strictly ascending; sort them, each id once")


@dataclass(frozen=True)
class Shard:
    """Some rows of a table. ids (n,) int64 ascending, rows (n, dim) float32, freq (n,) uint8: read-only views."""

    ids: np.ndarray
    rows: np.ndarray
    freq: np.ndarray

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.ids, self.rows, self.freq))


def write_table(folder: Path, table: TableData, *, shard_bytes: int) -> tuple[TableEntry, list[FileEntry]]:
    """Writes a table's shards under folder/tables. An empty table has one empty shard."""
    per_shard = max(1, shard_bytes // (table.dim * 4 + 9))
    paths = shard_paths(table.name, max(1, -(-len(table.ids) // per_shard)))
    files: list[FileEntry] = []
    for index, path in enumerate(paths):
        part = slice(index * per_shard, (index + 1) * per_shard)
        written = write_tensors(
            folder / path, {"ids": table.ids[part], "rows": table.rows[part], "freq": table.freq[part]}
        )
        files.append(FileEntry(path=path, size=written.size, sha256=written.sha256))
    entry = TableEntry(name=table.name, dim=table.dim, rows=len(table.ids), shards=tuple(paths))
    return entry, files


def read_table(folder: Path, entry: TableEntry) -> Iterator[Shard]:
    """Yields a table's shards in ascending order of ids. Raises UnsafeArtifact or IntegrityError, naming the file."""
    last: int | None = None
    rows = 0
    for path in entry.shards:
        shard = _open_shard(folder / path, path, entry.dim)
        if len(shard.ids):
            if not _ascending(shard.ids) or (last is not None and int(shard.ids[0]) <= last):
                raise IntegrityError(f"{path}: ids are not strictly ascending")
            last = int(shard.ids[-1])
        rows += len(shard.ids)
        yield shard
    if rows != entry.rows:
        raise IntegrityError(f"table {entry.name!r}: the manifest says {entry.rows} rows, its files hold {rows}")


def _open_shard(path: Path, name: str, dim: int) -> Shard:
    file = TensorFile.open(path)
    if file.dtypes != _TENSORS:
        raise UnsafeArtifact(f"{name}: expected the tensors {_TENSORS}, got {file.dtypes}")
    ids, rows, freq = file.arrays["ids"], file.arrays["rows"], file.arrays["freq"]
    count = ids.shape[0] if ids.ndim == 1 else -1
    if rows.shape != (count, dim) or freq.shape != (count,):
        raise UnsafeArtifact(f"{name}: the shapes {ids.shape}, {rows.shape}, {freq.shape} do not make rows of {dim}")
    return Shard(ids, rows, freq)


def _ascending(ids: np.ndarray) -> bool:
    return bool(np.all(ids[1:] > ids[:-1]))
