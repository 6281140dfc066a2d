"""Converts encoded rows to tensors of a shard, which any safetensors reader can read if it has a dtype for them.

fp32, fp16 and bf16 are tensors (n, dim) of their own dtype, without the padding that rows have in a store; int8 is a
tensor (n, row_bytes) of bytes, each row its scale, its values and its padding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from storage.rows import RowCodec

ROW_DTYPES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "int8": "U8"}
_NUMPY: dict[str, np.dtype[Any]] = {"fp32": np.dtype("<f4"), "fp16": np.dtype("<f2"), "bf16": np.dtype("<u2")}


def row_tensor(codec: RowCodec, encoded: np.ndarray) -> np.ndarray:
    """Converts encoded rows (n, row_bytes) uint8 to the tensor's array, a view where there is no padding."""
    if codec.row_type == "int8":
        return encoded
    dtype = _NUMPY[codec.row_type]
    used = np.ascontiguousarray(encoded[:, : codec.dim * dtype.itemsize])
    return used.reshape(-1).view(dtype).reshape(len(encoded), codec.dim)


def encoded_rows(codec: RowCodec, tensor: np.ndarray, count: int) -> np.ndarray | None:
    """Converts a tensor's array to (count, row_bytes) uint8, a view where there is no padding; None for another
    shape.
    """
    width = codec.row_bytes if codec.row_type == "int8" else codec.dim
    if tensor.shape != (count, width):
        return None
    used = tensor.reshape(-1).view(np.uint8).reshape(count, width * tensor.itemsize)
    if used.shape[1] == codec.row_bytes:
        return used
    padded = np.zeros((count, codec.row_bytes), np.uint8)
    padded[:, : used.shape[1]] = used
    return padded
