"""Reads safetensors files and rows of tables: a length, a JSON header, bytes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    body = data[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(body[start:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def read_table(folder: Path, entry: dict[str, Any]) -> dict[int, np.ndarray]:
    """The rows of a table of a version or a delta, as float64. entry: the manifest's."""
    rows: dict[int, np.ndarray] = {}
    for shard in entry["shards"]:
        tensors = read_tensors(folder / shard)
        values = decode_rows(entry.get("row_type", "fp32"), entry["dim"], tensors["rows"])
        rows.update(zip(tensors["ids"].tolist(), values, strict=True))
    return rows


def decode_rows(row_type: str, dim: int, stored: np.ndarray) -> np.ndarray:
    """A shard's tensor of rows -> (n, dim) float64, written from docs/format.md."""
    if row_type == "bf16":  # the upper half of a float32
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if row_type == "int8":
        scales = np.ascontiguousarray(stored[:, :4]).view("<f4").astype(np.float64)
        return scales * stored[:, 4 : 4 + dim].view(np.int8)
    assert row_type in ("fp32", "fp16")
    return stored.astype(np.float64)
