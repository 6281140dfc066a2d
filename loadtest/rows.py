"""Draws requests from rows of files. The server describes the model's inputs, and the requests are written here: of our
other code, only what reads the files is imported.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from loadtest.access import access_headers
from loadtest.data import microseconds, raw_integers, read_columns, time_unit
from storage.features import InputSpec
from storage.features.nested_arrow import joined_array

NUMPY_DTYPES = {
    "INT64": np.int64,
    "INT32": np.int32,
    "UINT64": np.uint64,
    "FP32": np.float32,
    "FP64": np.float64,
    "BOOL": np.bool_,
}
_COMPANIONS = (".lengths", ".valid")
_COLUMN = ("column", "column_type", "unit", "flatten")


@dataclass(frozen=True)
class Tensor:
    """One input of a request. BYTES hold Python bytes in an object array."""

    name: str
    dtype: str
    values: np.ndarray[Any, Any]


@dataclass(frozen=True)
class InputMetadata:
    """An input as the server describes it."""

    name: str
    dtype: str
    #: True if its second dimension is open.
    is_list: bool
    #: The training column that feeds it, its name by default.
    column: str = ""
    #: Type of the column in training, "" where the server does not report it.
    column_type: str = ""
    #: Unit of integers that are times (s, ms, us, ns), which are sent in microseconds.
    unit: str = ""
    #: Whether the column may hold lists of lists, which are sent as one list.
    flatten: bool = False
    #: Values of a row of an input that is no list.
    width: int = 1

    def spec(self) -> InputSpec:
        """Returns the input as the reader of files takes it. Raises ValueError for what it does not know."""
        shape = {"kind": "list"} if self.is_list else {"width": self.width}
        given = {key: value for key in _COLUMN if (value := getattr(self, key))}
        return InputSpec.model_validate({"name": self.name, "dtype": self.dtype, **shape, **given})


def model_inputs(host: str, model: str) -> list[InputMetadata]:
    """Returns the raw inputs of a model, without the companions of lists and nulls. host: http://address:port."""
    request = urllib.request.Request(f"{host}/v2/models/{model}", headers=access_headers())
    with urllib.request.urlopen(request, timeout=30) as answer:
        return inputs_of(json.loads(answer.read()))


def inputs_of(metadata: Mapping[str, Any]) -> list[InputMetadata]:
    """Returns the raw inputs of a model, of its metadata as KServe v2 has them."""
    return [
        InputMetadata(
            entry["name"],
            entry["datatype"],
            int(entry["shape"][-1]) == -1,
            **{key: value for key, value in entry.get("parameters", {}).items() if key in _COLUMN},
            width=max(1, int(entry["shape"][-1])),
        )
        for entry in metadata["inputs"]
        if not entry["name"].endswith(_COMPANIONS)
    ]


class RequestSource:
    """Draws batches of rows at random, with a seed, so that two runs send the same requests."""

    def __init__(
        self, data: Path | str, inputs: Sequence[InputMetadata], *, items: int, seed: int, rows: int = 100_000
    ) -> None:
        self._inputs = inputs
        self._table = input_table(data, inputs, rows)
        self._items = items
        self._random = np.random.default_rng(seed)

    def draw(self) -> list[Tensor]:
        """Returns the tensors of one request of `items` rows."""
        rows = self._table.take(pa.array(self._random.integers(0, self._table.num_rows, self._items)))
        return request_tensors(self._inputs, rows)


def input_table(data: Path | str, inputs: Sequence[InputMetadata], rows: int) -> pa.Table:
    """Returns the first rows of a file, folder, pattern or URL, with a column for each input, named like the input.

    Raises ValueError naming the column that is missing, or of another type than the model was trained on.
    """
    specs = [entry.spec() for entry in inputs]
    table = read_columns(str(data), specs, rows)
    columns = [table.column(spec.source).combine_chunks() for spec in specs]
    columns = [joined_array(column) if spec.flatten else column for spec, column in zip(specs, columns, strict=True)]
    return pa.table(columns, [spec.name for spec in specs])


def request_tensors(inputs: Sequence[InputMetadata], rows: pa.Table) -> list[Tensor]:
    """Returns the tensors of one request that asks for these rows of `input_table`.

    Lists are padded; NAME.valid marks nulls; times are in microseconds.
    """
    return [tensor for entry in inputs for tensor in _tensors(entry, rows.column(entry.name))]


def _tensors(entry: InputMetadata, column: pa.ChunkedArray) -> list[Tensor]:
    unit = time_unit(column.type) or entry.unit
    values = (raw_integers(column) if time_unit(column.type) else column).to_pylist()
    tensors: list[Tensor] = []
    if None in values:
        valid = np.array([[value is not None] * (1 if entry.is_list else entry.width) for value in values])
        tensors.append(Tensor(f"{entry.name}.valid", "BOOL", valid))
    if not entry.is_list:
        fixed = [value if isinstance(value, list) else [value] * entry.width for value in values]
        return [Tensor(entry.name, entry.dtype, _array(entry.dtype, fixed, unit)), *tensors]
    lists = [value or [] for value in values]
    longest = max(map(len, lists), default=0)
    lengths = np.array([[len(value)] for value in lists], np.int64)
    padded = [value + [None] * (longest - len(value)) for value in lists]
    array = _array(entry.dtype, padded, unit).reshape(len(lists), longest)
    return [Tensor(entry.name, entry.dtype, array), Tensor(f"{entry.name}.lengths", "INT64", lengths), *tensors]


def _array(dtype: str, rows: Sequence[Sequence[Any]], unit: str) -> np.ndarray[Any, Any]:
    if unit:
        return np.asarray(microseconds(_array("INT64", rows, ""), unit)).astype(NUMPY_DTYPES[dtype])
    if dtype == "BYTES":
        flat = [_bytes(value) for row in rows for value in row]
        array = np.empty(len(flat), object)
        array[:] = flat
        return array.reshape(len(rows), -1) if flat else array.reshape(len(rows), 0)
    return np.array([[0 if value is None else value for value in row] for row in rows], NUMPY_DTYPES[dtype])


def _bytes(value: Any) -> bytes:
    return b"" if value is None else value if isinstance(value, bytes) else str(value).encode()
