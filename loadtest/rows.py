"""Requests drawn from Parquet rows. What a model takes is asked of the server; none of our other code is imported."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset

from loadtest.access import access_headers

NUMPY_DTYPES = {
    "INT64": np.int64,
    "INT32": np.int32,
    "UINT64": np.uint64,
    "FP32": np.float32,
    "FP64": np.float64,
    "BOOL": np.bool_,
}
_COMPANIONS = (".lengths", ".valid")


@dataclass(frozen=True)
class Tensor:
    """One input as it goes over the wire. BYTES hold Python bytes in an object array."""

    name: str
    dtype: str
    values: np.ndarray[Any, Any]


@dataclass(frozen=True)
class InputMetadata:
    """An input as the server describes it. is_list: its second dimension is open."""

    name: str
    dtype: str
    is_list: bool


def model_inputs(host: str, model: str) -> list[InputMetadata]:
    """The raw inputs of a model, without the companions of lists and nulls. host: http://address:port."""
    request = urllib.request.Request(f"{host}/v2/models/{model}", headers=access_headers())
    with urllib.request.urlopen(request, timeout=30) as answer:
        metadata = json.loads(answer.read())
    return [
        InputMetadata(entry["name"], entry["datatype"], int(entry["shape"][-1]) == -1)
        for entry in metadata["inputs"]
        if not entry["name"].endswith(_COMPANIONS)
    ]


class RequestSource:
    """Draws batches of rows at random, with a seed, so that two runs send the same requests."""

    def __init__(
        self, data: Path, inputs: Sequence[InputMetadata], *, items: int, seed: int, rows: int = 100_000
    ) -> None:
        dataset = pyarrow.dataset.dataset(data, format="parquet")
        self._inputs = [entry for entry in inputs if entry.name in dataset.schema.names]
        missing = [entry.name for entry in inputs if entry.name not in dataset.schema.names]
        if missing:
            raise ValueError(f"{data} has no column for the inputs {missing}; its columns are {dataset.schema.names}")
        self._table = dataset.head(rows, columns=[entry.name for entry in self._inputs]).combine_chunks()
        if self._table.num_rows == 0:
            raise ValueError(f"{data} has no rows")
        self._items = items
        self._random = np.random.default_rng(seed)

    def draw(self) -> list[Tensor]:
        """The tensors of one request of `items` rows."""
        rows = self._table.take(pa.array(self._random.integers(0, self._table.num_rows, self._items)))
        return request_tensors(self._inputs, rows)


def request_tensors(inputs: Sequence[InputMetadata], rows: pa.Table) -> list[Tensor]:
    """The tensors of one request that asks for these rows. Lists are padded; nulls are said by NAME.valid."""
    return [tensor for entry in inputs for tensor in _tensors(entry, rows.column(entry.name))]


def _tensors(entry: InputMetadata, column: pa.ChunkedArray) -> list[Tensor]:
    values = column.to_pylist()
    tensors: list[Tensor] = []
    if None in values:
        valid = np.array([[value is not None] for value in values])
        tensors.append(Tensor(f"{entry.name}.valid", "BOOL", valid))
    if not entry.is_list:
        return [Tensor(entry.name, entry.dtype, _array(entry.dtype, [[value] for value in values])), *tensors]
    lists = [value or [] for value in values]
    longest = max(map(len, lists), default=0)
    lengths = np.array([[len(value)] for value in lists], np.int64)
    padded = [value + [None] * (longest - len(value)) for value in lists]
    array = _array(entry.dtype, padded).reshape(len(lists), longest)
    return [Tensor(entry.name, entry.dtype, array), Tensor(f"{entry.name}.lengths", "INT64", lengths), *tensors]


def _array(dtype: str, rows: Sequence[Sequence[Any]]) -> np.ndarray[Any, Any]:
    if dtype == "BYTES":
        flat = [_bytes(value) for row in rows for value in row]
        array = np.empty(len(flat), object)
        array[:] = flat
        return array.reshape(len(rows), -1) if flat else array.reshape(len(rows), 0)
    return np.array([[0 if value is None else value for value in row] for row in rows], NUMPY_DTYPES[dtype])


def _bytes(value: Any) -> bytes:
    return b"" if value is None else value if isinstance(value, bytes) else str(value).encode()
