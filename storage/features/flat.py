"""Encodes columns as bytes, so that those of several requests are joined without being decoded.

A layout says for each column which input it is and in what form; the bytes hold the arrays of the columns one after the
other. A plain column has one array of values with as many rows as the request. When all columns are plain, nothing is
padded, so that a request of numbers is no larger than its tensors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storage.errors import InvalidInput
from storage.features.columns import BytesValues, Column, Values
from storage.features.dtypes import DTYPES, NUMPY_DTYPES
from storage.features.feature import InputSpec

_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_ENTRY = struct.Struct("<HBB")
_LIST, _VALID, _ONE_ROW = 1, 2, 4
_ALIGNMENT = 8
_PADDING = bytes(_ALIGNMENT)


@dataclass(frozen=True, slots=True)
class FlatColumn:
    """One column of a layout."""

    name: str
    dtype: str
    width: int
    is_list: bool
    has_valid: bool
    #: True when one row applies to all rows of the request.
    is_one_row: bool

    @property
    def is_plain(self) -> bool:
        """True when the column is one array of numbers."""
        return self.dtype != "BYTES" and not (self.is_list or self.has_valid or self.is_one_row)


class Layout:
    """The columns that the bytes hold, in their order. Immutable.

    `is_plain` is true when all columns are plain. `row_bytes` has the bytes of a row of each column then; it is empty
    otherwise.
    """

    def __init__(self, columns: Sequence[FlatColumn]) -> None:
        self.columns = tuple(columns)
        self.names = frozenset(column.name for column in columns)
        self.is_plain = all(column.is_plain for column in columns)
        self.row_bytes: tuple[int, ...] = ()
        if self.is_plain:
            self.row_bytes = tuple(column.width * NUMPY_DTYPES[column.dtype].itemsize for column in columns)

    @classmethod
    def parse(cls, code: bytes, inputs: Sequence[InputSpec]) -> Layout:
        """Reads the layout that `flatten` described for a model with these inputs. Raises InvalidInput."""
        if len(code) % _ENTRY.size:
            raise InvalidInput(f"a layout of {len(code)} bytes")
        columns: list[FlatColumn] = []
        for place, dtype, flags in _ENTRY.iter_unpack(code):
            if place >= len(inputs) or dtype >= len(DTYPES) or flags > _LIST | _VALID | _ONE_ROW:
                raise InvalidInput(f"a layout with an input {place} of dtype {dtype} and flags {flags}")
            spec = inputs[place]
            width = 1 if flags & _LIST else spec.width
            columns.append(
                FlatColumn(
                    spec.name,
                    DTYPES[dtype],
                    width,
                    bool(flags & _LIST),
                    bool(flags & _VALID),
                    bool(flags & _ONE_ROW),
                )
            )
        return cls(columns)


class FlatColumns(Mapping[str, Column]):
    """Maps names to the columns of a request over its bytes; they are made at the first access.

    data: uint8, exactly what `flatten` returned, unchanged while this is in use. Raises InvalidInput when the bytes do
    not fit layout and batch; when not all columns are plain, at the first access.
    """

    def __init__(self, layout: Layout, data: np.ndarray, batch: int) -> None:
        self.layout = layout
        self.data = data
        self.batch = batch
        self._made: dict[str, Column] | None = None
        if layout.is_plain and len(data) != batch * sum(layout.row_bytes):
            raise InvalidInput(f"{len(data)} bytes of {batch} rows, {batch * sum(layout.row_bytes)} were expected")

    def __getitem__(self, name: str) -> Column:
        if self._made is None:
            self._made = _restore(self.layout, self.data, self.batch)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter([column.name for column in self.layout.columns])

    def __len__(self) -> int:
        return len(self.layout.columns)

    def __contains__(self, name: object) -> bool:
        return name in self.layout.names


def plain_blocks(
    requests: Sequence[tuple[Mapping[str, Column], int]], layout: Layout
) -> tuple[list[np.ndarray], list[int]] | None:
    """Returns the bytes and the rows of requests that all have this plain layout; None if one has another form."""
    blocks: list[np.ndarray] = []
    batches: list[int] = []
    for columns, batch in requests:
        if not isinstance(columns, FlatColumns) or columns.layout is not layout:
            return None
        blocks.append(columns.data)
        batches.append(batch)
    return blocks, batches


def flatten(columns: Mapping[str, Column], batch: int, places: Mapping[str, int]) -> tuple[bytes, bytes]:
    """Encodes columns; returns the layout's code and the bytes. places: the position of each input in the spec."""
    code = bytearray()
    parts: list[Any] = []
    for name, column in columns.items():
        values = column.values
        if (
            column.offsets is not None
            or column.valid is not None
            or column.rows != batch
            or type(values) is not np.ndarray
        ):
            return _flatten_any(columns, batch, places)
        code += _ENTRY.pack(places[name], _CODES[column.dtype], 0)
        parts.append(values.data)
    return bytes(code), b"".join(parts)


def _flatten_any(columns: Mapping[str, Column], batch: int, places: Mapping[str, int]) -> tuple[bytes, bytes]:
    code = bytearray()
    parts: list[Any] = []

    def add(array: np.ndarray) -> None:
        parts.append(array.data)
        parts.append(_PADDING[: -array.nbytes % _ALIGNMENT])

    for name, column in columns.items():
        flags = 0
        if column.rows != batch:
            flags |= _ONE_ROW
        if column.offsets is not None:
            flags |= _LIST
            add(column.offsets)
        values = column.values
        if isinstance(values, BytesValues):
            add(np.array([len(values), len(values.data)], np.int64))
            add(np.ascontiguousarray(values.starts))
            add(np.ascontiguousarray(values.ends))
            add(np.ascontiguousarray(values.data))
        else:
            add(values)
        if column.valid is not None:
            flags |= _VALID
            add(column.valid)
        code += _ENTRY.pack(places[name], _CODES[column.dtype], flags)
    return bytes(code), b"".join(parts)


class _Reader:
    def __init__(self, data: np.ndarray, *, padded: bool) -> None:
        self._data = data
        self._padded = padded
        self._at = 0

    def take(self, dtype: np.dtype[np.generic], count: int) -> np.ndarray:
        size = count * dtype.itemsize
        if count < 0 or size > len(self._data) - self._at:
            raise InvalidInput(f"{len(self._data)} bytes, of which {self._at} were read, hold no {size} more")
        found = self._data[self._at : self._at + size].view(dtype)
        self._at += size + (-size % _ALIGNMENT if self._padded else 0)
        return found if found.flags.aligned else found.copy()

    def check_end(self) -> None:
        if self._at != len(self._data):
            raise InvalidInput(f"{len(self._data)} bytes, of which {self._at} were read")


def _restore(layout: Layout, data: np.ndarray, batch: int) -> dict[str, Column]:
    reader = _Reader(data, padded=not layout.is_plain)
    made: dict[str, Column] = {}
    for entry in layout.columns:
        rows = 1 if entry.is_one_row else batch
        offsets = reader.take(np.dtype(np.int64), rows + 1) if entry.is_list else None
        count = rows * entry.width if offsets is None else int(offsets[-1])
        values = _bytes_values(reader) if entry.dtype == "BYTES" else reader.take(NUMPY_DTYPES[entry.dtype], count)
        valid = reader.take(np.dtype(np.uint8), rows * entry.width) if entry.has_valid else None
        made[entry.name] = Column(entry.dtype, rows, entry.width, values, offsets, valid)
    reader.check_end()
    return made


def _bytes_values(reader: _Reader) -> Values:
    count, size = reader.take(np.dtype(np.int64), 2).tolist()
    starts, ends = reader.take(np.dtype(np.int64), count), reader.take(np.dtype(np.int64), count)
    return BytesValues(reader.take(np.dtype(np.uint8), size), starts, ends)
