"""Rows of embedding tables in a published version: sorted shards, written and read one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.checkpoint.finite import first_bad_row
from storage.checkpoint.folder import MAX_SHARD_BYTES, VerifiedFolder
from storage.checkpoint.manifest import FileEntry, shard_paths
from storage.checkpoint.tensors import TensorFile, write_tensors
from storage.errors import CheckpointError, IntegrityError, UnsafeArtifact
from storage.specs import TableSpec

SHARD_BYTES = 128 << 20
_TENSORS = {"ids": "I64", "rows": "F32", "freq": "U8"}


@dataclass(frozen=True)
class TableData:
    """One table as it is published.

    ids: (n,) int64, strictly ascending. rows: (n, dim) float32, finite. freq: (n,) uint8, logarithmic use count.
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
        if not ascending(self.ids):
            raise CheckpointError(f"table {self.name!r}: ids must be strictly ascending; sort them, each id once")
        if (bad := first_bad_row(self.rows)) is not None:
            raise CheckpointError(
                f"table {self.name!r}: the row of id {self.ids[bad]} holds NaN or infinity; the training went wrong"
            )


@dataclass(frozen=True)
class Shard:
    """Some rows of a table. ids (n,) int64 ascending, rows (n, dim) float32, freq (n,) uint8: read-only views."""

    ids: np.ndarray
    rows: np.ndarray
    freq: np.ndarray

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.ids, self.rows, self.freq))


def write_table(folder: Path, table: TableData, *, shard_bytes: int) -> list[FileEntry]:
    """Writes a table's shards under folder/tables, in order. An empty table has one empty shard."""
    row_bytes = table.dim * 4 + 9
    per_shard = max(1, shard_bytes // row_bytes)
    if per_shard * row_bytes > MAX_SHARD_BYTES // 2:
        raise CheckpointError(f"shard_bytes is {shard_bytes}, expected at most {MAX_SHARD_BYTES // 2}")
    files: list[FileEntry] = []
    for index, path in enumerate(shard_paths(table.name, max(1, -(-len(table.ids) // per_shard)))):
        part = slice(index * per_shard, (index + 1) * per_shard)
        written = write_tensors(
            folder / path, {"ids": table.ids[part], "rows": table.rows[part], "freq": table.freq[part]}
        )
        files.append(FileEntry(path=path, size=written.size, sha256=written.sha256))
    return files


def read_table(folder: VerifiedFolder, table: str, dim: int, rows: int, shards: Sequence[str]) -> Iterator[Shard]:
    """Yields a table's shards in ascending order of ids. Raises UnsafeArtifact or IntegrityError, naming the file.

    Each shard's bytes are read into memory and hashed before they are parsed; the caller lets go of them.
    """
    last: int | None = None
    found = 0
    for path in shards:
        shard = _parse_shard(folder.read(path), path, dim)
        if len(shard.ids):
            if not ascending(shard.ids) or (last is not None and int(shard.ids[0]) <= last):
                raise IntegrityError(f"{path}: ids are not strictly ascending")
            last = int(shard.ids[-1])
        if (bad := first_bad_row(shard.rows)) is not None:
            raise IntegrityError(f"table {table!r}: the row of id {shard.ids[bad]} in {path} holds NaN or infinity")
        found += len(shard.ids)
        yield shard
    if found != rows:
        raise IntegrityError(f"table {table!r}: the manifest says {rows} rows, its files hold {found}")


def ascending(ids: np.ndarray) -> bool:
    """Whether ids (n,) are strictly ascending."""
    return bool(np.all(ids[1:] > ids[:-1]))


def first_common(ids: np.ndarray, others: np.ndarray) -> int | None:
    """The smallest id in both, or None. ids, others: int64 ascending."""
    if len(ids) == 0 or len(others) == 0:
        return None
    places = np.minimum(np.searchsorted(ids, others), len(ids) - 1)
    common = others[ids[places] == others]
    return int(common[0]) if len(common) else None


def _parse_shard(data: np.ndarray, name: str, dim: int) -> Shard:
    file = TensorFile.from_bytes(name, data)
    if file.dtypes != _TENSORS:
        raise UnsafeArtifact(f"{name}: expected the tensors {_TENSORS}, got {file.dtypes}")
    ids, rows, freq = file.arrays["ids"], file.arrays["rows"], file.arrays["freq"]
    count = ids.shape[0] if ids.ndim == 1 else -1
    if rows.shape != (count, dim) or freq.shape != (count,):
        raise UnsafeArtifact(f"{name}: the shapes {ids.shape}, {rows.shape}, {freq.shape} do not make rows of {dim}")
    return Shard(ids, rows, freq)
