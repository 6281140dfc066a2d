"""Reads batches of inputs from files: .npz, .safetensors, Parquet, and JSON lines of KServe v2 bodies."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import EmberlineError, InvalidInput

if TYPE_CHECKING:
    from storage.checkpoint import Golden
    from storage.features import Column

Batch = dict[str, np.ndarray]

#: numpy's types by the names of KServe v2.
KSERVE_TYPES: dict[str, type[np.generic]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
    # Its values are read as float32, and not sent.
    "BF16": np.float32,
}
# What the readers of these formats raise for a file that is damaged, encrypted or packed in an unusual way.
_DAMAGED = (OSError, ValueError, LookupError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
_KNOWN = ".npz, .safetensors, .parquet, or .jsonl of KServe v2 bodies"


def read_batch(path: Path) -> Batch:
    """Returns all rows of a file as one batch. Raises InvalidInput naming what is wrong, and where."""
    parts = read_requests(path)
    names = list(parts[0])
    for number, part in enumerate(parts):
        if list(part) != names or any(part[name].shape[1:] != parts[0][name].shape[1:] for name in names):
            raise InvalidInput(f"{path}: request {number} has other inputs or shapes than the first", field=str(path))
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def read_requests(path: Path) -> list[Batch]:
    """Returns the requests of a file: those of its lines, or one with all rows. float64 becomes float32.

    Raises InvalidInput naming what is wrong, and where.
    """
    reader = {".npz": _npz, ".safetensors": _safetensors, ".parquet": _parquet, ".jsonl": _lines, ".json": _lines}.get(
        path.suffix
    )
    if reader is None:
        raise InvalidInput(f"{path}: expected {_KNOWN}", field=str(path))
    try:
        requests = reader(path)
    except EmberlineError:
        raise
    except _DAMAGED as error:
        raise InvalidInput(f"{path}: cannot be read as {path.suffix} ({error})", field=str(path)) from None
    found = [{name: _narrow(values) for name, values in request.items()} for request in requests]
    if not found or not all(found):
        raise InvalidInput(f"{path}: it holds no inputs", field=str(path))
    for number, request in enumerate(found):
        rows = {name: len(values) if values.ndim else 0 for name, values in request.items()}
        if len(set(rows.values())) != 1 or 0 in rows.values():
            raise InvalidInput(
                f"{path}: request {number} has inputs of {rows} rows; expected as many of each", field=str(path)
            )
    return found


def cut(requests: Sequence[Batch], rows: int, limit: int) -> list[Batch]:
    """Returns requests of `rows` rows at most, `limit` rows in all."""
    pieces: list[Batch] = []
    left = limit
    for request in requests:
        count = min(left, rows_of(request))
        pieces += [
            {name: values[start : min(start + rows, count)] for name, values in request.items()}
            for start in range(0, count, rows)
        ]
        left -= count
    return pieces


def joined(requests: Sequence[Batch]) -> list[Batch]:
    """Returns the requests with those whose inputs are alike made one."""
    alike: dict[object, list[Batch]] = {}
    for request in requests:
        key = tuple(sorted((name, values.dtype.str, values.shape[1:]) for name, values in request.items()))
        alike.setdefault(key, []).append(request)
    return [merged_outputs(group) for group in alike.values()]


def rows_of(batch: Mapping[str, np.ndarray]) -> int:
    """Returns the number of rows of a batch."""
    return len(next(iter(batch.values())))


def merged_outputs(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Concatenates the outputs of several batches."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def kserve_type(values: np.ndarray) -> str:
    """Returns the name of an array's type in KServe v2."""
    if values.dtype == object:
        return "BYTES"
    name = next((name for name, kind in KSERVE_TYPES.items() if np.dtype(kind) == values.dtype), None)
    if name is None:
        raise InvalidInput(f"values of {values.dtype}: KServe v2 has no such type, expected {', '.join(KSERVE_TYPES)}")
    return name


def golden_batches(golden: Golden) -> list[Batch]:
    """Returns the golden requests as batches; those with lists are cut by the lengths of the lists, and those with
    nulls or empty lists, which a tensor cannot hold, are left out.
    """
    rows = golden.batch
    lengths = np.stack(
        [np.full(rows, -1) if column.offsets is None else np.diff(column.offsets) for column in golden.columns.values()]
    )
    valid = np.ones(rows, bool)
    for column in golden.columns.values():
        if column.valid is not None:
            valid &= column.valid.reshape(rows, -1).astype(bool).all(axis=1)
    batches: list[Batch] = []
    for wanted in np.unique(lengths[:, valid], axis=1).T:
        chosen = np.flatnonzero(valid & (lengths == wanted[:, None]).all(axis=0))
        if (wanted != 0).all():
            batches.append({name: _chosen(column, chosen) for name, column in golden.columns.items()})
    return batches


def _chosen(column: Column, rows: np.ndarray) -> np.ndarray:
    values = column.values if isinstance(column.values, np.ndarray) else np.array(column.values.tolist(), object)
    if column.offsets is None:
        return np.asarray(values.reshape(column.rows, column.width)[rows])
    return np.stack([values[column.offsets[each] : column.offsets[each + 1]] for each in rows.tolist()])


def _narrow(values: np.ndarray) -> np.ndarray:
    """Returns float64 as float32, texts of numpy as objects, and all numbers in this machine's order of bytes."""
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if values.dtype.kind in "US":
        return values.astype(object)
    return values.astype(np.float32) if values.dtype == np.float64 else values


def _npz(path: Path) -> list[Batch]:
    with path.open("rb") as file, np.load(file) as archive:
        return [{name: archive[name] for name in archive.files}]


def _safetensors(path: Path) -> list[Batch]:
    from storage.checkpoint.tensors import TensorFile

    file = TensorFile.from_bytes(path.name, path.read_bytes())
    return [{name: np.array(values) for name, values in file.arrays.items()}]


def _parquet(path: Path) -> list[Batch]:
    import pyarrow as pa

    try:
        return [_columns(path)]
    except pa.ArrowException as error:
        raise ValueError(error) from None


def _columns(path: Path) -> Batch:
    import pyarrow as pa
    import pyarrow.parquet as pq

    batch: Batch = {}
    table = pq.read_table(path)
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        column = column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)
        if column.null_count:
            raise InvalidInput(f"{path}: the column {name!r} holds nulls; a tensor has none", field=name)
        if (
            pa.types.is_list(column.type)
            or pa.types.is_large_list(column.type)
            or pa.types.is_fixed_size_list(column.type)
        ):
            values = np.asarray(column.flatten())
            if len(column) == 0 or len(values) % len(column) or len({len(row) for row in column}) > 1:
                raise InvalidInput(f"{path}: the lists of {name!r} differ in length; a tensor has one", field=name)
            batch[name] = values.reshape(len(column), -1)
        else:
            batch[name] = np.asarray(column.to_numpy(zero_copy_only=False))
    return batch


def _lines(path: Path) -> list[Batch]:
    requests: list[Batch] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            body = json.loads(line)
            requests.append({entry["name"]: _of_kserve(entry) for entry in body["inputs"]})
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{path}:{number}: not a KServe v2 body ({error!r})", field=f"{path}:{number}") from None
    return requests


def _of_kserve(entry: Mapping[str, Any]) -> np.ndarray:
    datatype = entry["datatype"]
    kind = np.dtype(KSERVE_TYPES[datatype])
    values = np.asarray(entry["data"], object).reshape(entry["shape"])
    for each in values.reshape(-1).tolist():
        if (kind.kind in "iu" and not is_whole(each, kind)) or (kind.kind == "b" and not isinstance(each, bool)):
            raise ValueError(f"{entry['name']!r}: {each!r} is no {datatype}")
    return values.astype(kind)


def is_whole(value: object, kind: np.dtype[Any]) -> bool:
    """Returns whether a number is one that a type of whole numbers can hold."""
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return int(np.iinfo(kind).min) <= value <= int(np.iinfo(kind).max)
