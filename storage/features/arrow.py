"""Makes columns from the Arrow arrays of training data, without a copy where the layouts agree.

Slices, chunks, nulls, dictionaries, and lists of every offset width are supported. Dates, timestamps and integers with
a declared unit become microseconds (`storage.features.times`). A null inside a list of floats becomes NaN and keeps its
position; in other lists it is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import InvalidInput
from storage.features.column_types import is_list
from storage.features.columns import Array, BytesValues, Column, Values
from storage.features.dtypes import NUMPY_DTYPES, TIME_DTYPES, element_type
from storage.features.nested_arrow import joined_array
from storage.features.times import is_time, to_microseconds

if TYPE_CHECKING:
    from storage.features.feature import InputSpec


def column_from_arrow(array: Any, spec: InputSpec) -> Column:
    """Makes the column of an input from a pyarrow Array or ChunkedArray, without a copy where the layout allows it.

    Raises InvalidInput naming the column when its type cannot feed the input.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # several chunks that do not fit in one 32-bit offset
            raise InvalidInput(f"column {spec.source!r}: over 2 GiB of strings at once; use batches", field=spec.name)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        flat = _null_type(spec)
        array = array.cast(
            pa.list_(flat, spec.width) if spec.width > 1 else flat if spec.kind == "fixed" else pa.list_(flat)
        )
    if spec.flatten:
        array = joined_array(array)
    if pa.types.is_nested(array.type.value_type if is_list(array.type) else array.type):
        raise InvalidInput(
            f"column {spec.source!r} is {array.type}, which cannot feed the input {spec.name!r}: a row holds one "
            f"value or one list of values; {_remedy(array.type, spec)}",
            field=spec.name,
        )
    if spec.kind == "list":
        return _list(array, spec)
    if spec.width > 1:
        return _matrix(array, spec)
    if is_list(array.type):
        raise InvalidInput(
            f"column {spec.source!r} holds lists ({array.type}), but the input {spec.name!r} is fixed; use kind: list",
            field=spec.name,
        )
    dtype, values = _flat(array, spec)
    return Column(dtype, len(array), 1, values, None, _valid(array))


def _remedy(kind: Any, spec: InputSpec) -> str:
    if spec.kind == "list" and is_list(kind) and is_list(kind.value_type):
        return "set flatten: true for this input to have the values of all inner lists"
    return "make a column of each part"


def _list(array: Any, spec: InputSpec) -> Column:
    if not is_list(array.type):
        raise InvalidInput(
            f"column {spec.source!r} is {array.type}, but the input {spec.name!r} is a list", field=spec.name
        )
    valid, rows = _valid(array), len(array)
    if pa.types.is_fixed_size_list(array.type):
        # `flatten` leaves null rows out, so their lengths are zero.
        lengths = np.full(rows, array.type.list_size, dtype=np.int64)
        if valid is not None:
            lengths[valid == 0] = 0
        offsets = np.zeros(rows + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        child = array.flatten()
    else:
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        offsets = np.zeros(rows + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        child = array.flatten()
    if pa.types.is_dictionary(child.type):
        child = child.dictionary_decode()
    if pa.types.is_null(child.type):
        child = child.cast(_null_type(spec))
    if child.null_count and element_type(spec.dtype) != "float":
        present = _valid(child)
        assert present is not None
        before = np.zeros(len(child) + 1, dtype=np.int64)
        np.cumsum(present, out=before[1:])
        offsets = before[offsets]
        child = child.drop_null()
    dtype, values = _flat(child, spec)
    if child.null_count:
        if dtype not in ("FP32", "FP64"):  # integers that feed a list of floats
            dtype, values = "FP64", np.asarray(values, dtype=np.float64)
        values = np.array(values, copy=True)
        values[_valid(child) == 0] = np.nan
    return Column(dtype, rows, 1, values, offsets, valid)


def _matrix(array: Any, spec: InputSpec) -> Column:
    rows, width = len(array), spec.width
    if not is_list(array.type):
        raise InvalidInput(
            f"column {spec.source!r} is {array.type}, but the input {spec.name!r} has width {width}: expected lists",
            field=spec.name,
        )
    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
    present = _valid(array)
    full = np.ones(rows, dtype=bool) if present is None else present.astype(bool)
    wrong = np.flatnonzero(full & (lengths != width))
    if len(wrong):
        raise InvalidInput(
            f"column {spec.source!r}, row {wrong[0]}: {int(lengths[wrong[0]])} values, expected {width}",
            field=spec.name,
        )
    child = array.flatten()
    if pa.types.is_dictionary(child.type):
        child = child.dictionary_decode()
    dtype, values = _flat(child, spec)
    inner = _valid(child)
    if present is None:
        return Column(dtype, rows, width, values, None, inner)
    # Null rows have no values in the child: spread its values over the positions of the other rows.
    places = np.repeat(full, width)
    valid = places.astype(np.uint8)
    if inner is not None:
        valid[places] = inner
    return Column(dtype, rows, width, _spread(values, places), None, valid)


def _spread(values: Values, places: Array) -> Values:
    if isinstance(values, BytesValues):
        starts, ends = np.zeros(len(places), dtype=np.int64), np.zeros(len(places), dtype=np.int64)
        starts[places], ends[places] = values.starts, values.ends
        return BytesValues(values.data, starts, ends)
    spread = np.zeros(len(places), dtype=values.dtype)
    spread[places] = values
    return spread


def _flat(array: Any, spec: InputSpec) -> tuple[str, Values]:
    """Returns the dtype and the values of a flat array, with fillers for nulls."""
    kind = array.type
    if _is_text(kind):
        _require(spec, kind, spec.dtype == "BYTES")
        return "BYTES", _strings(array)
    if pa.types.is_boolean(kind):
        _require(spec, kind, spec.dtype == "BOOL")
        bits = pc.fill_null(array, False) if array.null_count else array
        return "BOOL", bits.to_numpy(zero_copy_only=False)
    array = _times(array, spec)
    if pa.types.is_integer(array.type):
        _require(spec, kind, spec.dtype not in ("BYTES", "BOOL"))
    else:
        _require(spec, kind, pa.types.is_floating(array.type) and spec.dtype in ("FP32", "FP64"))
    if array.null_count:
        array = pc.fill_null(array, pa.scalar(0, array.type))
    values = array.to_numpy(zero_copy_only=False)
    dtype = _column_dtype(values.dtype)
    return dtype, np.ascontiguousarray(values, dtype=NUMPY_DTYPES[dtype])


def _times(array: Any, spec: InputSpec) -> Any:
    """Converts times, and integers with the unit of `spec`, to int64 microseconds; returns anything else as it is."""
    if is_time(array.type):
        if spec.dtype not in TIME_DTYPES:
            raise InvalidInput(
                f"column {spec.source!r} is {array.type}, but the input {spec.name!r} is {spec.dtype}; a time is in "
                f"microseconds and needs the dtype {' or '.join(TIME_DTYPES)}",
                field=spec.name,
            )
        return to_microseconds(array, spec.source)
    if spec.unit is None:
        return array
    if not pa.types.is_integer(array.type):
        raise InvalidInput(
            f"column {spec.source!r} is {array.type}, but the input {spec.name!r} has the unit {spec.unit!r}; expected "
            "integers, dates or timestamps",
            field=spec.name,
        )
    return to_microseconds(array, spec.source, spec.unit)


def _column_dtype(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "f":
        return "FP64" if dtype.itemsize == 8 else "FP32"
    if dtype == np.uint64:
        return "UINT64"
    return "INT32" if dtype.itemsize < 4 or dtype == np.int32 else "INT64"


def _strings(array: Any) -> BytesValues:
    if "view" in str(array.type):
        array = array.cast(pa.large_string() if pa.types.is_string_view(array.type) else pa.large_binary())
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, where, text = array.buffers()
    count = len(array)
    if count == 0 or where is None:
        empty = np.zeros(0, dtype=np.int64)
        return BytesValues(np.zeros(0, dtype=np.uint8), empty, empty)
    offsets = np.frombuffer(where, dtype=np.int64 if wide else np.int32)[array.offset : array.offset + count + 1]
    offsets = offsets.astype(np.int64, copy=False)
    data = np.zeros(0, dtype=np.uint8) if text is None else np.frombuffer(text, dtype=np.uint8)
    return BytesValues(data, offsets[:-1], offsets[1:])


def _valid(array: Any) -> Array | None:
    if not array.null_count:
        return None
    mask: Array = array.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    return mask


def _is_text(kind: Any) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or "view" in str(kind)
    )


def _null_type(spec: InputSpec) -> Any:
    if spec.unit is not None:
        return pa.int64()
    return pa.binary() if spec.dtype == "BYTES" else pa.from_numpy_dtype(NUMPY_DTYPES[spec.dtype])


def _require(spec: InputSpec, kind: Any, condition: bool) -> None:
    if not condition:
        raise InvalidInput(
            f"column {spec.source!r} is {kind}, which cannot feed the input {spec.name!r} of dtype {spec.dtype}",
            field=spec.name,
        )
