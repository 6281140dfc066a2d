"""Exports the rows of a table as of a snapshot to Parquet: ids ascending, one row of numbers each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.checkpoint.as_of import AsOf
from storage.errors import NotFound
from storage.features.strict_model import did_you_mean
from storage.paths import local_path

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
            for ids, rows in _rows(as_of, table, dim):
                flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
                arrays = [pa.array(ids), pa.FixedSizeListArray.from_arrays(flat, dim)]
                writer.write_batch(pa.record_batch(arrays, schema=schema))
                done += len(ids)
                if progress is not None:
                    progress(done, max(done, total))
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return done


def _rows(as_of: AsOf, table: str, dim: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields ids, ascending over all parts, with their rows."""
    changed, rows, there = _changes(as_of, table, dim)
    at = 0
    for shard in as_of.version.shards(table):
        if len(shard.ids) == 0:
            continue
        # Changed ids up to this shard's last belong among its own.
        end = int(np.searchsorted(changed, shard.ids[-1], side="right"))
        kept = ~np.isin(shard.ids, changed[at:end], assume_unique=True)
        mine = there[at:end]
        ids = np.concatenate([shard.ids[kept], changed[at:end][mine]])
        values = np.concatenate([shard.rows[kept], rows[at:end][mine]])
        order = np.argsort(ids, kind="stable")
        at = end
        yield ids[order], values[order]
    rest = there[at:]
    if rest.any():
        yield changed[at:][rest], rows[at:][rest]


def _changes(as_of: AsOf, table: str, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what deltas changed: ids ascending, the newest row of each, and whether the id is there at all."""
    ids = [np.empty(0, np.int64)]
    rows = [np.empty((0, dim), np.float32)]
    there = [np.empty(0, np.bool_)]
    for delta in as_of.deltas:
        if table not in {spec.name for spec in delta.tables}:
            continue
        for shard in delta.shards(table):
            ids.append(shard.ids)
            rows.append(shard.rows)
            there.append(np.ones(len(shard.ids), np.bool_))
        gone = delta.removed(table)
        ids.append(gone)
        rows.append(np.zeros((len(gone), dim), np.float32))
        there.append(np.zeros(len(gone), np.bool_))
    every = np.concatenate(ids)
    # For an id that occurs several times the last row counts: the first from the end.
    unique, places = np.unique(every[::-1], return_index=True)
    last = len(every) - 1 - places
    return unique, np.concatenate(rows)[last], np.concatenate(there)[last]
