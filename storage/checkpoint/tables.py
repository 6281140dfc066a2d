"""Writes and reads the rows of embedding tables in a published version as sorted shards, one at a time.

n rows, dim values a row, row_bytes bytes of a row as it is stored (storage.rows).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from storage.checkpoint.fingerprint import rows_fingerprint
from storage.checkpoint.finite import first_bad_row
from storage.checkpoint.folder import MAX_SHARD_BYTES, VerifiedFolder
from storage.checkpoint.manifest import FileEntry, shard_paths
from storage.checkpoint.row_tensors import ROW_DTYPES, encoded_rows, row_tensor
from storage.checkpoint.table_kinds import DYNAMIC, TableKind
from storage.checkpoint.tensors import TensorFile, write_tensors
from storage.errors import CheckpointError, IntegrityError, UnsafeArtifact
from storage.initializers import ABSENT_ZEROS, AbsentRows
from storage.parallel import map_in_order
from storage.rows import Rounding, RowCodec
from storage.specs import TableSpec

SHARD_BYTES = 128 << 20


@dataclass(frozen=True)
class TableData:
    """One table as it is published.

    Raises CheckpointError for arrays that do not fit, or rows that the row type cannot hold; ConfigError for absent
    rows that it cannot hold.
    """

    name: str
    dim: int
    #: (n,) int64, strictly ascending.
    ids: np.ndarray
    #: (n, dim) float32, finite, as they were trained. A server has the decoded `encoded` instead.
    rows: np.ndarray
    #: (n,) uint8, logarithmic use counts.
    freq: np.ndarray
    #: The encoding in which rows are stored.
    row_type: str = "fp32"
    #: What ids without a row read as.
    absent: AbsentRows = ABSENT_ZEROS
    #: By which options the table was made.
    kind: TableKind = DYNAMIC

    def __post_init__(self) -> None:
        TableSpec(self.name, self.dim, self.row_type, absent=self.absent)
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
        if self.row_type != "fp32" and (bad := self.codec.first_not_finite(self.encoded)) is not None:
            raise CheckpointError(
                f"table {self.name!r}: the row of id {self.ids[bad]} holds {np.abs(self.rows[bad]).max():g}, which "
                f"{self.row_type} cannot hold; publish the table as fp32"
            )

    @property
    def codec(self) -> RowCodec:
        """The codec of its rows."""
        return RowCodec(self.row_type, self.dim)

    @cached_property
    def encoded(self) -> np.ndarray:
        """The rows as they are stored: (n, row_bytes) uint8."""
        return self.codec.encode(self.rows)

    @cached_property
    def rounding(self) -> Rounding:
        """The error of the stored rows against the trained ones."""
        return Rounding.of(self.codec, self.rows, self.encoded)


class Shard:
    """Holds some rows of a table. ids: (n,) int64 ascending. freq: (n,) uint8. codec: that of `encoded`.

    It is made of rows (n, dim) float32, or of encoded rows (n, row_bytes) uint8 and their codec. Arrays are not copied.
    """

    def __init__(self, ids: np.ndarray, rows: np.ndarray, freq: np.ndarray, codec: RowCodec | None = None) -> None:
        self.ids = ids
        self.freq = freq
        self.codec = codec or RowCodec("fp32", rows.shape[1])
        self.encoded: np.ndarray = rows if rows.dtype == np.uint8 else self.codec.encode(rows)

    @cached_property
    def rows(self) -> np.ndarray:
        """The decoded rows, (n, dim) float32; for fp32 a view of `encoded`."""
        return self.codec.decode(self.encoded)

    def take(self, which: np.ndarray | slice) -> Shard:
        """Returns some of its rows. which: a slice, positions or flags."""
        return Shard(self.ids[which], self.encoded[which], self.freq[which], self.codec)


def write_table(folder: Path, table: TableData, *, shard_bytes: int) -> list[FileEntry]:
    """Writes a table's shards under folder/tables, in order. An empty table has one empty shard."""
    per_shard = rows_per_shard(table.codec, shard_bytes)
    dtypes = {"rows": ROW_DTYPES[table.codec.row_type]}
    files: list[FileEntry] = []
    for index, path in enumerate(shard_paths(table.name, max(1, -(-len(table.ids) // per_shard)))):
        part = slice(index * per_shard, (index + 1) * per_shard)
        rows = row_tensor(table.codec, table.encoded[part])
        written = write_tensors(folder / path, {"ids": table.ids[part], "rows": rows, "freq": table.freq[part]}, dtypes)
        files.append(FileEntry(path=path, size=written.size, sha256=written.sha256))
    return files


def rows_per_shard(codec: RowCodec, shard_bytes: int) -> int:
    """Returns the number of rows of a shard of about so many bytes. Raises CheckpointError where that is too many."""
    row_bytes = codec.row_bytes + 9
    per_shard = max(1, shard_bytes // row_bytes)
    if per_shard * row_bytes > MAX_SHARD_BYTES // 2:
        raise CheckpointError(f"shard_bytes is {shard_bytes}, expected at most {MAX_SHARD_BYTES // 2}")
    return per_shard


@dataclass(frozen=True)
class ReadShard:
    """A shard whose bytes are those that were published."""

    shard: Shard
    #: Fingerprint of its rows; 0 where it was not requested.
    fingerprint: int = 0


def read_table(
    folder: VerifiedFolder, spec: TableSpec, shards: Sequence[str], *, threads: int = 1, fingerprints: bool = False
) -> Iterator[ReadShard]:
    """Yields a table's shards in ascending order of ids. Raises UnsafeArtifact or IntegrityError, naming the file.

    Each shard's bytes are read into memory and hashed before they are parsed; the caller drops them. threads: number of
    threads, each at work on one shard. fingerprints: compute those of the rows too.
    """
    codec = RowCodec(spec.row_type, spec.dim)

    def read(path: str) -> ReadShard:
        shard = _parse_shard(folder.read(path), path, codec)
        _check_rows(spec.name, path, shard)
        return ReadShard(shard, rows_fingerprint(shard.ids, shard.encoded) if fingerprints else 0)

    last: int | None = None
    found = 0
    for path, each in zip(shards, map_in_order(read, shards, threads), strict=True):
        ids = each.shard.ids
        if len(ids):
            if last is not None and int(ids[0]) <= last:
                raise IntegrityError(f"{path}: ids are not strictly ascending")
            last = int(ids[-1])
        found += len(ids)
        yield each
    if found != spec.rows:
        raise IntegrityError(f"table {spec.name!r}: the manifest says {spec.rows} rows, its files hold {found}")


def ascending(ids: np.ndarray) -> bool:
    """Returns whether ids (n,) are strictly ascending."""
    return bool(np.all(ids[1:] > ids[:-1]))


def first_common(ids: np.ndarray, others: np.ndarray) -> int | None:
    """Returns the smallest id in both, or None. ids, others: int64 ascending."""
    if len(ids) == 0 or len(others) == 0:
        return None
    places = np.minimum(np.searchsorted(ids, others), len(ids) - 1)
    common = others[ids[places] == others]
    return int(common[0]) if len(common) else None


def _check_rows(table: str, path: str, shard: Shard) -> None:
    """Raises IntegrityError for rows that no publisher of ours writes."""
    if not ascending(shard.ids):
        raise IntegrityError(f"{path}: ids are not strictly ascending")
    codec = shard.codec
    where = f"table {table!r}: the row of id {{}} in {path}"
    if (bad := codec.first_not_finite(shard.encoded)) is not None:
        raise IntegrityError(f"{where.format(shard.ids[bad])} holds NaN or infinity")
    if (bad := codec.first_unusual(shard.encoded)) is not None:
        raise IntegrityError(
            f"{where.format(shard.ids[bad])} is no row that {codec.row_type} encodes to; publish the table again"
        )


def _parse_shard(data: np.ndarray, name: str, codec: RowCodec) -> Shard:
    file = TensorFile.from_bytes(name, data)
    expected = {"ids": "I64", "rows": ROW_DTYPES[codec.row_type], "freq": "U8"}
    if file.dtypes != expected:
        raise UnsafeArtifact(f"{name}: expected the tensors {expected}, got {file.dtypes}")
    ids, rows, freq = file.arrays["ids"], file.arrays["rows"], file.arrays["freq"]
    count = ids.shape[0] if ids.ndim == 1 else -1
    encoded = encoded_rows(codec, rows, count) if freq.shape == (count,) else None
    if encoded is None:
        raise UnsafeArtifact(
            f"{name}: the shapes {ids.shape}, {rows.shape}, {freq.shape} do not make rows of {codec.dim}"
        )
    return Shard(ids, encoded, freq, codec)
