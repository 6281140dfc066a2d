"""Finds the tensors of safetensors files that others wrote: with metadata, in any order, of any dtype."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from storage.checkpoint.strict_json import parse_json
from storage.checkpoint.tensors import check_apart
from storage.errors import InvalidInput
from storage.importing.files import OtherArray, RawArray, file_size, item_bytes

MAX_HEADER_BYTES = 64 << 20
_DTYPES = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F64": "float64",
    "I64": "int64",
    "I32": "int32",
    "U64": "uint64",
}


def tensors_of(path: Path) -> dict[str, RawArray | OtherArray]:
    """Returns the tensors of one or two dimensions, by name.

    Raises InvalidInput for a file that is no safetensors file, or is cut off.
    """
    size = file_size(path)
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if size < 8 or header_bytes > min(MAX_HEADER_BYTES, size - 8):
            raise InvalidInput(f"{path}: is no safetensors file, or it is cut off")
        text = file.read(header_bytes)
    header = parse_json(text, what=f"{path} header", max_bytes=MAX_HEADER_BYTES)
    if not isinstance(header, dict):
        raise InvalidInput(f"{path}: is no safetensors file: its header is no JSON object")
    start = 8 + header_bytes
    found: dict[str, RawArray | OtherArray] = {}
    places: dict[str, tuple[int, int]] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = _place(path, name, entry, size - start)
        places[name] = first, last
        if 1 <= len(entry["shape"]) <= 2 and 0 not in entry["shape"][1:]:
            found[name] = _array(path, name, entry, start)
    check_apart(str(path), places, size - start)
    return found


def _place(path: Path, name: str, entry: Any, size: int) -> tuple[int, int]:
    """Returns the first byte of a tensor and the one after its last, after a check of its entry in the header."""
    try:
        dtype, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, first, last]
    except (TypeError, KeyError, ValueError):
        raise InvalidInput(f"{path}: is no safetensors file: the entry {name!r} is no tensor") from None
    if not isinstance(dtype, str) or any(type(number) is not int or number < 0 for number in numbers):
        raise InvalidInput(f"{path}: is no safetensors file: the entry {name!r} is no tensor")
    if last > size or first > last:
        raise InvalidInput(f"{path}: the tensor {name!r} ends behind the file, which is cut off")
    return first, last


def _array(path: Path, name: str, entry: Any, start: int) -> RawArray | OtherArray:
    dtype, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
    width = shape[1] if len(shape) == 2 else 0
    if dtype not in _DTYPES:
        return OtherArray(path, name, dtype, width, shape[0])
    if last - first != math.prod(shape) * item_bytes(_DTYPES[dtype]):
        raise InvalidInput(f"{path}: the tensor {name!r} of {dtype} {shape} does not fill its {last - first} bytes")
    return RawArray(path, _DTYPES[dtype], width, shape[0], start + first)
