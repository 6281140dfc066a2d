"""Exports the rows of a table as of a snapshot to Parquet: ids ascending, one row of numbers each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.checkpoint import Shard
from storage.checkpoint.as_of import AsOf
from storage.errors import CheckpointError, NotFound
from storage.features.strict_model import did_you_mean
from storage.paths import local_path
from storage.rows import RowCodec

# Called after each part that is written: rows so far, rows in all (some fewer or more, where deltas removed or added
# rows).
Progress = Callable[[int, int], None]


def export_table(as_of: AsOf, table: str, target: Path, *, progress: Progress | None = None) -> int:
    """Writes the columns `id` (int64) and `row` (dim float32, as they are served); returns the number of rows.

    What deltas changed is held in memory, the rest passes through. The file appears under its name when it is complete.
    Raises NotFound for an unknown table.
    """
    target = local_path(target, "target")
    specs = {spec.name: spec for spec in as_of.version.tables}
    if table not in specs:
        raise NotFound(f"no table {table!r}{did_you_mean(table, specs)}")
    dim = specs[table].dim
    row = pa.list_(pa.float32(), dim)
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("row", row, nullable=False)],
        metadata={
            b"emberline.snapshot": as_of.id.encode(),
            b"emberline.version": str(as_of.version.version).encode(),
            b"emberline.sequence": str(as_of.sequence).encode(),
            b"emberline.table": table.encode(),
        },
    )
    unfinished = target.with_name(target.name + ".part")
    done, total = 0, specs[table].rows
    try:
        with pq.ParquetWriter(unfinished, schema) as writer:
            for shard in snapshot_rows(as_of, table):
                flat = pa.array(np.ascontiguousarray(shard.rows).reshape(-1))
                arrays = [pa.array(shard.ids), pa.FixedSizeListArray.from_arrays(flat, dim)]
                writer.write_batch(pa.record_batch(arrays, schema=schema))
                done += len(shard.ids)
                if progress is not None:
                    progress(done, max(done, total))
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return done


def snapshot_rows(as_of: AsOf, table: str) -> Iterator[Shard]:
    """Yields a table's rows as of a snapshot, by ascending ids, with their use counts.

    What deltas changed is held in memory, the rest passes through shard by shard.
    """
    spec = next(spec for spec in as_of.version.tables if spec.name == table)
    codec = RowCodec(spec.row_type, spec.dim)
    changed, there = _changes(as_of, table, codec)
    at = 0
    for shard in as_of.version.shards(table):
        if len(shard.ids) == 0:
            continue
        # Changed ids up to this shard's last belong among its own.
        end = int(np.searchsorted(changed.ids, shard.ids[-1], side="right"))
        mine, at = slice(at, end), end
        if mine.start == end:
            yield shard
            continue
        kept = ~np.isin(shard.ids, changed.ids[mine], assume_unique=True)
        yield _joined([shard.take(kept), changed.take(mine).take(there[mine])], codec)
    if there[at:].any():
        yield changed.take(slice(at, None)).take(there[at:])


def _joined(shards: Sequence[Shard], codec: RowCodec) -> Shard:
    """Returns the rows of some shards by ascending ids; for an id that occurs several times, the last in order."""
    ids = np.concatenate([shard.ids for shard in shards])
    encoded = np.concatenate([shard.encoded for shard in shards])
    return Shard(ids, encoded, np.concatenate([shard.freq for shard in shards]), codec).take(_last_of_each(ids))


def _changes(as_of: AsOf, table: str, codec: RowCodec) -> tuple[Shard, np.ndarray]:
    """Returns what deltas changed, the newest row of each id, and whether the id is there at all."""
    shards, there = [_without_rows(np.empty(0, np.int64), codec)], [np.empty(0, np.bool_)]
    for delta in as_of.deltas:
        if table not in {spec.name for spec in delta.tables}:
            continue
        for shard in delta.shards(table):
            if shard.codec != codec:
                raise CheckpointError(f"{delta.path}: table {table!r} has other rows than the version: {shard.codec}")
            shards.append(shard)
            there.append(np.ones(len(shard.ids), np.bool_))
        shards.append(_without_rows(delta.removed(table), codec))
        there.append(np.zeros(len(shards[-1].ids), np.bool_))
    last = _last_of_each(np.concatenate([shard.ids for shard in shards]))
    return _joined(shards, codec), np.concatenate(there)[last]


def _last_of_each(ids: np.ndarray) -> np.ndarray:
    """Returns the place of the last occurrence of each id, by ascending ids."""
    # Of equal ids, np.unique names the first: here the first from the end.
    return len(ids) - 1 - np.unique(ids[::-1], return_index=True)[1]


def _without_rows(ids: np.ndarray, codec: RowCodec) -> Shard:
    return Shard(ids, np.zeros((len(ids), codec.row_bytes), np.uint8), np.zeros(len(ids), np.uint8), codec)
