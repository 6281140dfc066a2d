"""The KServe dtypes that travel: their bytes, numpy types and names in Triton's configuration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class WireType:
    """One dtype on the wire. item_bytes 0: of variable length (BYTES)."""

    name: str
    item_bytes: int
    numpy: np.dtype
    config: str  # name in config.pbtxt
    family: str  # integer, float, bytes or bool: what may feed what


WIRE_TYPES: dict[str, WireType] = {
    entry.name: entry
    for entry in (
        WireType("BOOL", 1, np.dtype(np.bool_), "TYPE_BOOL", "bool"),
        WireType("INT32", 4, np.dtype("<i4"), "TYPE_INT32", "integer"),
        WireType("INT64", 8, np.dtype("<i8"), "TYPE_INT64", "integer"),
        WireType("UINT64", 8, np.dtype("<u8"), "TYPE_UINT64", "integer"),
        WireType("FP32", 4, np.dtype("<f4"), "TYPE_FP32", "float"),
        WireType("FP64", 8, np.dtype("<f8"), "TYPE_FP64", "float"),
        WireType("BYTES", 0, np.dtype(object), "TYPE_STRING", "bytes"),
    )
}


def accepts(declared: str, given: str) -> bool:
    """Whether a tensor of dtype `given` may feed an input declared as `declared`; integers interchange."""
    want, have = WIRE_TYPES[declared].family, WIRE_TYPES[given].family
    return want == have or (want == "float" and have == "integer")
