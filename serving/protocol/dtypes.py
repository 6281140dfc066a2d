"""Lists the KServe dtypes on the wire: their bytes, numpy types and names in Triton's configuration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class WireType:
    """Describes one dtype on the wire."""

    name: str
    #: 0 for a variable length (BYTES).
    item_bytes: int
    numpy: np.dtype
    #: Its name in config.pbtxt.
    config: str
    #: The family decides which tensors may feed which inputs: "integer", "float", "bytes" or "bool". Tensors of the
    #: families "small integer" and "half" feed only inputs of their own dtype; "half" has no form in JSON, and its
    #: values are kept unchanged.
    family: str


WIRE_TYPES: dict[str, WireType] = {
    entry.name: entry
    for entry in (
        WireType("BOOL", 1, np.dtype(np.bool_), "TYPE_BOOL", "bool"),
        WireType("INT8", 1, np.dtype("<i1"), "TYPE_INT8", "small integer"),
        WireType("UINT8", 1, np.dtype("<u1"), "TYPE_UINT8", "small integer"),
        WireType("INT16", 2, np.dtype("<i2"), "TYPE_INT16", "small integer"),
        WireType("UINT16", 2, np.dtype("<u2"), "TYPE_UINT16", "small integer"),
        WireType("UINT32", 4, np.dtype("<u4"), "TYPE_UINT32", "small integer"),
        WireType("FP16", 2, np.dtype("<u2"), "TYPE_FP16", "half"),
        WireType("BF16", 2, np.dtype("<u2"), "TYPE_BF16", "half"),
        WireType("INT32", 4, np.dtype("<i4"), "TYPE_INT32", "integer"),
        WireType("INT64", 8, np.dtype("<i8"), "TYPE_INT64", "integer"),
        WireType("UINT64", 8, np.dtype("<u8"), "TYPE_UINT64", "integer"),
        WireType("FP32", 4, np.dtype("<f4"), "TYPE_FP32", "float"),
        WireType("FP64", 8, np.dtype("<f8"), "TYPE_FP64", "float"),
        WireType("BYTES", 0, np.dtype(object), "TYPE_STRING", "bytes"),
    )
}


def accepts(declared: str, given: str) -> bool:
    """Returns whether a tensor of dtype `given` may feed an input declared as `declared`.

    The wider integers may replace each other and feed floats; FP32 feeds FP64, but FP64 does not feed FP32, which would
    round it.
    """
    if declared == given:
        return True
    want, have = WIRE_TYPES[declared].family, WIRE_TYPES[given].family
    if have == "integer":
        return want in ("integer", "float")
    return (declared, given) == ("FP64", "FP32")
