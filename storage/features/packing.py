"""Converts columns to named arrays and back; golden files store raw requests in this form.

A numeric input is NAME; BYTES are NAME.data (uint8) and NAME.ends (int64); lists add NAME.offsets, nulls NAME.valid.
A fixed input's NAME or NAME.ends has shape (rows, width), a list's (n,).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from storage.errors import InvalidInput
from storage.features.columns import Array, BytesValues, Column
from storage.features.dtypes import accepts, wire_dtype
from storage.features.strict_model import did_you_mean

if TYPE_CHECKING:
    from storage.features.feature import InputSpec
    from storage.features.spec import FeatureSpec


def pack_columns(columns: Mapping[str, Column]) -> dict[str, Array]:
    """Returns columns as contiguous named arrays. Strings are packed, so that no other bytes of a buffer are stored."""
    arrays: dict[str, Array] = {}
    for name, column in columns.items():
        shape = (-1,) if column.is_list else (column.rows, column.width)
        if isinstance(column.values, BytesValues):
            data, ends = _packed(column.values)
            arrays[f"{name}.data"] = data
            arrays[f"{name}.ends"] = ends.reshape(shape)
        else:
            arrays[name] = np.ascontiguousarray(column.values).reshape(shape)
        if column.offsets is not None:
            arrays[f"{name}.offsets"] = np.ascontiguousarray(column.offsets)
        if column.valid is not None:
            arrays[f"{name}.valid"] = np.ascontiguousarray(column.valid).view(np.uint8)
    return arrays


def unpack_columns(arrays: Mapping[str, Array], spec: FeatureSpec) -> dict[str, Column]:
    """Makes the columns of a spec from pack_columns's result. Raises InvalidInput for arrays that do not fit the spec.

    An input whose `missing` is "null" may be left out. Contents are checked by the engine.
    """
    left = set(arrays)
    columns: dict[str, Column] = {}
    for entry in spec.inputs:
        names = {entry.name, *(f"{entry.name}.{part}" for part in ("data", "ends", "offsets", "valid"))}
        here = names & left
        left -= here
        if here:
            columns[entry.name] = _unpack(entry, {name: arrays[name] for name in here})
        elif entry.missing == "error":
            raise InvalidInput(f"input {entry.name!r} is not in the packed arrays", field=entry.name)
    if left:
        stranger = min(left)
        known = [entry.name for entry in spec.inputs]
        raise InvalidInput(f"the array {stranger!r} belongs to no input{did_you_mean(stranger, known)}", field=stranger)
    return columns


def _unpack(entry: InputSpec, arrays: dict[str, Array]) -> Column:
    name, is_list = entry.name, entry.kind == "list"
    leading = f"{name}.ends" if entry.dtype == "BYTES" else name
    expected = {leading} | ({f"{name}.data"} if entry.dtype == "BYTES" else set())
    expected |= {f"{name}.offsets"} if is_list else set()
    if arrays.keys() - {f"{name}.valid"} != expected:
        raise InvalidInput(f"input {name!r}: packed as {sorted(arrays)}, expected {sorted(expected)}", field=name)
    lead = arrays[leading]
    if lead.ndim != (1 if is_list else 2):
        raise InvalidInput(f"input {name!r}: {leading!r} has shape {list(lead.shape)}", field=name)
    offsets = arrays.get(f"{name}.offsets")
    if offsets is not None and (offsets.ndim != 1 or len(offsets) < 1):
        raise InvalidInput(f"input {name!r}: the offsets have shape {list(offsets.shape)}", field=name)
    rows, width = (len(offsets) - 1, 1) if offsets is not None else lead.shape
    valid = arrays.get(f"{name}.valid")
    flat = np.ascontiguousarray(lead).reshape(-1)
    if entry.dtype == "BYTES":
        starts = np.zeros_like(flat)
        starts[1:] = flat[:-1]
        return Column("BYTES", rows, width, BytesValues(arrays[f"{name}.data"], starts, flat), offsets, valid)
    dtype = wire_dtype(flat.dtype)
    if dtype is None or not accepts(entry.dtype, dtype):
        raise InvalidInput(f"input {name!r}: packed as {flat.dtype}, expected {entry.dtype}", field=name)
    return Column(dtype, rows, width, flat, offsets, valid)


def _packed(values: BytesValues) -> tuple[Array, Array]:
    lengths = values.ends - values.starts
    ends = np.cumsum(lengths)
    if len(values) == 0:
        return np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int64)
    if values.starts[0] == 0 and np.array_equal(values.ends, ends):
        return np.ascontiguousarray(values.data[: ends[-1]]), ends
    index = np.arange(ends[-1]) + np.repeat(values.starts - (ends - lengths), lengths)
    return values.data[index], ends
