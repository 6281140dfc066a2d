"""Makes Arrow tables of served requests, with a row for each row of a request, as the trainer reads its data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from serving.feedback.served_batch import ServedBatch
from storage.features import BytesValues, Column, InputSpec
from storage.features.dtypes import FLOATS, TIMES
from storage.served_log import ARM, AT, ID, ROW, SCORE, SNAPSHOT

_TIMES = {"timestamp": pa.timestamp("us"), "time": pa.time64("us"), "duration": pa.duration("us")}
_ARRIVED = pa.timestamp("us", "UTC")
# Whole numbers above this are not all values of a double.
_EXACT = 2.0**53


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of one input; None where the request did not have it. One row may stand for all of them."""

    column: Column | None
    rows: int


def served_table(
    batches: Sequence[ServedBatch], columns: Sequence[tuple[InputSpec, str]], hashed: Mapping[str, Callable[[Any], str]]
) -> pa.Table:
    """Returns the rows of requests, which were answered by versions with the same inputs and outputs.

    columns: the inputs, each with the name of its column. hashed: what is written instead of a value, by input.
    """
    counts = [each.stop - each.start for batch in batches for each in batch.requests]
    arrays: dict[str, Any] = {
        ID: _repeated([each.id for batch in batches for each in batch.requests], counts),
        ROW: pa.array(np.concatenate([np.arange(count, dtype=np.int32) for count in counts])),
        AT: pa.array(np.repeat([each.arrived_us for batch in batches for each in batch.requests], counts), _ARRIVED),
        SNAPSHOT: _repeated([batch.snapshot for batch in batches], [batch.rows for batch in batches]),
        ARM: _repeated([batch.arm for batch in batches], [batch.rows for batch in batches]),
    }
    ranges = [batch.ranges() for batch in batches]
    for place, output in enumerate(batches[0].signature.outputs):
        values = [
            batch.outputs[place][start:stop]
            for batch, of_batch in zip(batches, ranges, strict=True)
            for start, stop in of_batch
        ]
        arrays[f"{SCORE}{output.name}"] = _scores(np.concatenate(values))
    for spec, name in columns:
        parts = [
            _part(batch.columns, spec.name, start, stop, batch.batch)
            for batch, of_batch in zip(batches, ranges, strict=True)
            for start, stop in of_batch
        ]
        arrays[name] = _array(spec, parts, hashed.get(spec.name))
    return pa.table(arrays)


def _repeated(values: list[str], counts: list[int]) -> Any:
    places = np.repeat(np.arange(len(values), dtype=np.int32), counts)
    texts = pa.array([value.encode("utf-8", "replace").decode() for value in values], pa.string())
    return texts.take(pa.array(places))


def _scores(values: np.ndarray) -> Any:
    width = int(np.prod(values.shape[1:]))
    if width == 1:
        return pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), width)


def _part(columns: Mapping[str, Column], name: str, start: int, stop: int, batch: int) -> _Part:
    if name not in columns:
        return _Part(None, stop - start)
    column = columns[name]
    if column.rows != batch:
        return _Part(column, stop - start)
    return _Part(column if stop - start == batch else column.slice(start, stop), stop - start)


def _array(spec: InputSpec, parts: Sequence[_Part], hashed: Callable[[Any], str] | None) -> Any:
    """Returns the values of an input, of which columns of any dtype that it takes came."""
    if spec.kind == "list":
        return _lists(spec, parts, hashed)
    values, valid = _joined(spec, parts)
    flat = _flat(spec, values, valid, hashed)
    return flat if spec.width == 1 else pa.FixedSizeListArray.from_arrays(flat, spec.width)


def _joined(spec: InputSpec, parts: Sequence[_Part]) -> tuple[Any, np.ndarray | None]:
    """Returns the values of a fixed input, one after the other, and which of them are there; None for all."""
    values: list[Any] = []
    valids: list[np.ndarray | None] = []
    for part in parts:
        count = part.rows * spec.width
        if part.column is None:
            values.append(_fill(spec, count))
            valids.append(np.zeros(count, np.bool_))
            continue
        column, own = part.column, part.column.valid
        repeats = 1 if column.rows == part.rows else part.rows
        values.append(_repeat(_plain(spec, column.values), repeats))
        valids.append(None if own is None else np.tile(own.astype(np.bool_), repeats))
    return _concatenated(spec, values), _masks(valids, [len(each) for each in values])


def _lists(spec: InputSpec, parts: Sequence[_Part], hashed: Callable[[Any], str] | None) -> Any:
    values: list[Any] = []
    lengths: list[np.ndarray] = []
    valids: list[np.ndarray | None] = []
    for part in parts:
        column = part.column
        if column is None:
            values.append(_fill(spec, 0))
            lengths.append(np.zeros(part.rows, np.int64))
            valids.append(np.zeros(part.rows, np.bool_))
            continue
        assert column.offsets is not None
        repeats = 1 if column.rows == part.rows else part.rows
        first, last = int(column.offsets[0]), int(column.offsets[-1])
        own = column.values
        own = own.take(slice(first, last)) if isinstance(own, BytesValues) else own[first:last]
        values.append(_repeat(_plain(spec, own), repeats))
        lengths.append(np.tile(np.diff(column.offsets), repeats))
        valids.append(None if column.valid is None else np.tile(column.valid.astype(np.bool_), repeats))
    valid = _masks(valids, [len(each) for each in lengths])
    counts = np.concatenate(lengths)
    offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    flat = _flat(spec, _concatenated(spec, values), None, hashed)
    return pa.LargeListArray.from_arrays(pa.array(offsets), flat, mask=None if valid is None else pa.array(~valid))


def _fill(spec: InputSpec, count: int) -> Any:
    return [b""] * count if spec.dtype == "BYTES" else np.zeros(count, _number_dtype(spec))


def _number_dtype(spec: InputSpec) -> Any:
    # The feature engine computes with these: nothing that it saw is lost.
    if spec.dtype in FLOATS:
        return np.float64
    return {"BOOL": np.bool_, "UINT64": np.uint64}.get(spec.dtype, np.int64)


def _plain(spec: InputSpec, values: Any) -> Any:
    return values.tolist() if isinstance(values, BytesValues) else values.astype(_number_dtype(spec), copy=False)


def _repeat(values: Any, count: int) -> Any:
    if count == 1:
        return values
    return values * count if isinstance(values, list) else np.tile(values, count)


def _concatenated(spec: InputSpec, values: list[Any]) -> Any:
    return list(itertools.chain.from_iterable(values)) if spec.dtype == "BYTES" else np.concatenate(values)


def _masks(valids: Sequence[np.ndarray | None], counts: Sequence[int]) -> np.ndarray | None:
    if all(each is None for each in valids):
        return None
    pairs = zip(valids, counts, strict=True)
    return np.concatenate([np.ones(count, np.bool_) if each is None else each for each, count in pairs])


def _flat(spec: InputSpec, values: Any, valid: np.ndarray | None, hashed: Callable[[Any], str] | None) -> Any:
    """Returns an Arrow array of the type that the training column has."""
    null = None if valid is None else ~valid
    if hashed is not None:
        known: dict[Any, str] = {}
        each = values if isinstance(values, list) else values.tolist()
        texts = [known.get(value) or known.setdefault(value, hashed(value)) for value in each]
        return pa.array(texts, pa.string(), mask=null)
    if spec.dtype == "BYTES":
        return pa.array(values, pa.binary(), mask=null)
    kind = "timestamp" if spec.unit is not None else spec.column_type
    if kind in TIMES and spec.dtype != "BOOL":
        there = np.nan_to_num(values).astype(np.int64)
        missing = np.isnan(values) if spec.dtype in FLOATS else np.zeros(len(values), np.bool_)
        return pa.array(there, mask=missing if null is None else missing | null).cast(_TIMES[str(kind)])
    if kind == "integer" and spec.dtype in FLOATS:
        missing = np.isnan(values) if null is None else np.isnan(values) | null
        whole = np.where(missing, 0.0, values)
        if np.all(np.abs(whole) < _EXACT) and np.all(whole == np.floor(whole)):
            return pa.array(whole.astype(np.int64), mask=missing)
    return pa.array(values, mask=null)
