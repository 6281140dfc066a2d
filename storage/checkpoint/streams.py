"""Writes a table of any size whose rows come in ascending order of ids, with a bounded number of them in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.checkpoint.fingerprint import MASK, rows_fingerprint
from storage.checkpoint.manifest import FileEntry, shard_paths
from storage.checkpoint.row_streams import RowStream
from storage.checkpoint.row_tensors import ROW_DTYPES, encoded_rows, row_tensor
from storage.checkpoint.table_kinds import DYNAMIC, TableKind
from storage.checkpoint.tables import Shard, TableData, rows_per_shard
from storage.checkpoint.tensors import TensorFile, WrittenFile, write_tensors
from storage.errors import CheckpointError
from storage.initializers import AbsentRows
from storage.rows import RowCodec

# Of the shards of a stream, one is filled, and so many are on their way to the disk: while one waits for it, the next
# is hashed.
_WRITERS = 2
STREAM_SHARD_BYTES = 64 << 20


@dataclass(frozen=True)
class TableStream:
    """One table as it is published, whose rows are read while they are written."""

    rows: RowStream
    kind: TableKind = DYNAMIC

    @property
    def name(self) -> str:
        """The table's name."""
        return self.rows.spec.name

    @property
    def dim(self) -> int:
        """Number of values of a row."""
        return self.rows.spec.dim

    @property
    def row_type(self) -> str:
        """The encoding in which rows are stored."""
        return self.rows.spec.row_type

    @property
    def absent(self) -> AbsentRows:
        """The rows that ids without one read as."""
        return self.rows.spec.absent

    @property
    def codec(self) -> RowCodec:
        """The codec of its rows."""
        return self.rows.codec


@dataclass(frozen=True)
class StreamedTable:
    """Describes the shards that were written. fingerprint: that of their rows."""

    files: list[FileEntry]
    rows: int
    fingerprint: int


def write_stream(folder: Path, table: TableStream, *, shard_bytes: int = STREAM_SHARD_BYTES) -> StreamedTable:
    """Writes a table's shards under folder/tables. Raises CheckpointError for ids out of order, and for bad rows."""
    files: list[WrittenFile] = []
    total, count = 0, 0
    with ThreadPoolExecutor(_WRITERS, "emberline-write") as writer:
        pending: deque[Future[WrittenFile]] = deque()
        for index, part in enumerate(_full_shards(table, rows_per_shard(table.codec, shard_bytes))):
            pending.append(writer.submit(_write, folder, table, index, part))
            _check_finite(table, part)
            total += rows_fingerprint(part.ids, part.encoded)
            count += len(part.ids)
            if len(pending) == _WRITERS:  # then its memory is used again
                files.append(pending.popleft().result())
        files += [each.result() for each in pending]
    paths = shard_paths(table.name, len(files))
    for index, path in enumerate(paths):
        _unnamed(folder, table, index).rename(folder / path)
    entries = [
        FileEntry(path=path, size=file.size, sha256=file.sha256) for path, file in zip(paths, files, strict=True)
    ]
    return StreamedTable(entries, count, total & MASK)


class WrittenRows:
    """Reads single rows of tables that were written into a folder a moment ago."""

    def __init__(
        self, folder: Path, tables: Sequence[TableData | TableStream], written: Mapping[str, StreamedTable]
    ) -> None:
        self._folder = folder
        self._codecs = {table.name: table.codec for table in tables}
        self._written = written

    def rows(self, table: str) -> int:
        """Returns the number of rows of a table."""
        return self._written[table].rows

    def find(self, table: str, ids: np.ndarray) -> Shard:
        """Returns the rows of those of `ids` (n,) int64 that have one, in ascending order."""
        codec, wanted = self._codecs[table], np.unique(ids)
        found: list[Shard] = []
        for entry in self._written[table].files:
            arrays = TensorFile.open(self._folder / entry.path).arrays
            held = arrays["ids"]
            if not len(held):
                continue
            here = wanted[np.searchsorted(wanted, held[0]) : np.searchsorted(wanted, held[-1], "right")]
            places = np.searchsorted(held, here)
            places = places[held[places] == here]
            encoded = encoded_rows(codec, np.ascontiguousarray(arrays["rows"][places]), len(places))
            assert encoded is not None
            found.append(Shard(held[places], encoded, arrays["freq"][places], codec))
        return joined(found, codec)


def joined(shards: Sequence[Shard], codec: RowCodec) -> Shard:
    """Returns the rows of shards, in their order, as one."""
    if not shards:
        return Shard(np.empty(0, np.int64), np.empty((0, codec.row_bytes), np.uint8), np.empty(0, np.uint8), codec)
    return Shard(
        np.concatenate([shard.ids for shard in shards]),
        np.concatenate([shard.encoded for shard in shards]),
        np.concatenate([shard.freq for shard in shards]),
        codec,
    )


def _full_shards(table: TableStream, per_shard: int) -> Iterator[Shard]:
    """Yields the rows in shards of `per_shard`, the last one smaller; one empty shard for a table without rows.

    The arrays of a shard are used again after _WRITERS more.
    """
    codec = table.codec
    made: deque[tuple[np.ndarray, np.ndarray, np.ndarray]] = deque()

    def buffers() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if len(made) <= _WRITERS:
            rows = np.empty((per_shard, codec.row_bytes), np.uint8)
            made.append((np.empty(per_shard, np.int64), rows, np.empty(per_shard, np.uint8)))
        else:
            made.rotate(-1)
        return made[-1]

    ids, rows, freq = buffers()
    filled, yielded = 0, False
    for block in table.rows:
        taken = 0
        while taken < len(block.ids):
            count = min(len(block.ids) - taken, per_shard - filled)
            here, there = slice(filled, filled + count), slice(taken, taken + count)
            ids[here], rows[here], freq[here] = block.ids[there], block.encoded[there], block.freq[there]
            filled, taken = filled + count, taken + count
            if filled == per_shard:
                yield Shard(ids, rows, freq, codec)
                yielded = True
                ids, rows, freq = buffers()
                filled = 0
    if filled or not yielded:
        yield Shard(ids[:filled], rows[:filled], freq[:filled], codec)


def _write(folder: Path, table: TableStream, index: int, part: Shard) -> WrittenFile:
    tensors = {"ids": part.ids, "rows": row_tensor(table.codec, part.encoded), "freq": part.freq}
    return write_tensors(_unnamed(folder, table, index), tensors, {"rows": ROW_DTYPES[table.codec.row_type]})


def _unnamed(folder: Path, table: TableStream, index: int) -> Path:
    # The name that a shard gets in the end has the number of shards in it, which is not known yet.
    return folder / "tables" / f"{table.name}.{index:05d}.part"


def _check_finite(table: TableStream, part: Shard) -> None:
    if (bad := table.codec.first_not_finite(part.encoded)) is not None:
        raise CheckpointError(
            f"table {table.name!r}: the row of id {part.ids[bad]} holds NaN, infinity, or what {table.row_type} cannot "
            "hold"
        )
