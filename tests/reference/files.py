"""Reads safetensors files and rows of tables: a length, a JSON header, bytes."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

DTYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}


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


def read_table(version: Path, name: str) -> dict[int, np.ndarray]:
    rows: dict[int, np.ndarray] = {}
    for shard in sorted((version / "tables").glob(f"{name}.*.safetensors")):
        tensors = read_tensors(shard)
        rows.update(zip(tensors["ids"].tolist(), tensors["rows"].astype(np.float64), strict=True))
    return rows
