"""Writes a table as Parquet, piece by piece, so that it may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from emberline.inspection.figures import Progress, row_norms
from emberline.inspection.source import Piece, TableFacts, TableSource

_REPEATED = ["count", "stamp", "tick"]


def waiting_file(target: Path) -> Path:
    """Returns the file beside `target` that ids without a row go to: items.parquet -> items.waiting.parquet."""
    return target.with_name(f"{target.stem}.waiting{target.suffix}")


def write_parquet(source: TableSource, target: Path, origin: str, progress: Progress | None = None) -> tuple[int, int]:
    """Writes the rows to `target`, and ids without a row to `waiting_file(target)` if there are any.

    Columns: `id` int64 ascending; `row`, dim float32; `count` int64; `norm` float64; from a run also `optimizer`
    (float32 values, if it has any), `stamp` and `tick`, uint32. Ids without a row: `id` and `count`. Both files appear
    when they are complete and replace older ones. Returns the numbers of rows and of ids without one.
    """
    facts, total = source.facts, source.total
    schema = _schema(facts, origin)
    rows = 0
    # Values hardly ever repeat, so a dictionary of them would be made and thrown away.
    with _whole(target) as unfinished, pq.ParquetWriter(unfinished, schema, use_dictionary=_REPEATED) as writer:
        for piece in source.pieces():
            writer.write_batch(pa.record_batch(_arrays(facts, piece), schema=schema))
            rows += len(piece)
            if progress is not None:
                progress(rows, max(rows, total))
    if progress is not None:
        progress(rows, rows)
    return rows, _write_waiting(source, waiting_file(target), origin)


def _write_waiting(source: TableSource, target: Path, origin: str) -> int:
    target.unlink(missing_ok=True)
    schema = pa.schema(
        [_field("id", pa.int64()), _field("count", pa.int64())], metadata=_metadata(source.facts, origin)
    )
    pieces = (piece for piece in source.waiting() if len(piece[0]))
    first = next(pieces, None)
    if first is None:
        return 0
    written = 0
    with _whole(target) as unfinished, pq.ParquetWriter(unfinished, schema) as writer:
        while first is not None:
            writer.write_batch(pa.record_batch([pa.array(first[0]), pa.array(first[1])], schema=schema))
            written += len(first[0])
            first = next(pieces, None)
    return written


def _schema(facts: TableFacts, origin: str) -> Any:
    fields = [_field("id", pa.int64()), _field("row", pa.list_(pa.float32(), facts.dim)), _field("count", pa.int64())]
    if facts.history is not None:
        fields += [_field("stamp", pa.uint32()), _field("tick", pa.uint32())]
    fields.append(_field("norm", pa.float64()))
    if facts.slots:
        fields.append(_field("optimizer", pa.list_(pa.float32(), facts.slots)))
    return pa.schema(fields, metadata=_metadata(facts, origin))


def _arrays(facts: TableFacts, piece: Piece) -> list[Any]:
    arrays = [pa.array(piece.ids), _fixed(piece.rows), pa.array(piece.counts)]
    if facts.history is not None:
        arrays += [pa.array(piece.stamps), pa.array(piece.ticks)]
    arrays.append(pa.array(row_norms(piece.rows)))
    if facts.slots:
        arrays.append(_fixed(piece.slots))
    return arrays


def _fixed(values: Any) -> Any:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _field(name: str, kind: Any) -> Any:
    return pa.field(name, kind, nullable=False)


def _metadata(facts: TableFacts, origin: str) -> dict[bytes, bytes]:
    return {
        b"emberline.table": facts.name.encode(),
        b"emberline.origin": origin.encode(),
        b"emberline.counts": b"approximate" if facts.approximate else b"exact",
        b"emberline.optimizer": facts.optimizer.encode(),
    }


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """Yields a name beside the target to write to; the file gets its own name when nothing was raised."""
    unfinished = target.with_name(target.name + ".part")
    try:
        yield unfinished
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
