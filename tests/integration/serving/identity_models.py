"""Writes repositories of identity models, makes random tensors for them, and sends the requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

CONFIG_TYPES = {
    "BOOL": "TYPE_BOOL",
    "INT8": "TYPE_INT8",
    "UINT8": "TYPE_UINT8",
    "INT16": "TYPE_INT16",
    "UINT16": "TYPE_UINT16",
    "INT32": "TYPE_INT32",
    "UINT32": "TYPE_UINT32",
    "INT64": "TYPE_INT64",
    "UINT64": "TYPE_UINT64",
    "FP16": "TYPE_FP16",
    "BF16": "TYPE_BF16",
    "FP32": "TYPE_FP32",
    "FP64": "TYPE_FP64",
    "BYTES": "TYPE_STRING",
}
WIDTH = 3
MAX_BATCH = 16
BINARY_ONLY = ("FP16", "BF16")


def write_identity(
    repository: Path, name: str, tensors: dict[str, tuple[str, list[int]]], *, max_batch: int = 0, extra: str = ""
) -> None:
    """tensors: dtype and dims by the end of the names: input "in_X" becomes output "out_X"."""
    lines = ['backend: "identity"', f"max_batch_size: {max_batch}"]
    for side in ("input", "output"):
        for key, (dtype, dims) in tensors.items():
            tensor = f"{'in' if side == 'input' else 'out'}_{key}"
            lines.append(f'{side} {{ name: "{tensor}" data_type: {CONFIG_TYPES[dtype]} dims: {dims} }}')
    folder = repository / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text("\n".join([*lines, extra]))


def write_repository(repository: Path) -> Path:
    """`every`: one input of each dtype, with a batch; `typed`: of those that gRPC and JSON have a form for.

    `flat`: tensors of any shape without a batch.
    """
    write_identity(repository, "every", {dtype: (dtype, [WIDTH]) for dtype in CONFIG_TYPES}, max_batch=MAX_BATCH)
    typed = {dtype: (dtype, [WIDTH]) for dtype in CONFIG_TYPES if dtype not in BINARY_ONLY}
    write_identity(repository, "typed", typed, max_batch=MAX_BATCH)
    write_identity(repository, "flat", {"A": ("INT32", [-1, -1]), "B": ("BYTES", [-1])})
    return repository


def random_tensor(dtype: str, shape: tuple[int, ...], rng: np.random.Generator, *, text: bool) -> np.ndarray:
    """Returns a random tensor as tritonclient takes it.

    text: BYTES only hold text that JSON can carry, and floats have no NaN.
    """
    count = int(np.prod(shape))
    values: Any
    if dtype == "BOOL":
        values = rng.random(count) < 0.5
    elif dtype == "BYTES":
        values = np.empty(count, object)
        for place, size in enumerate(rng.integers(0, 9, count).tolist()):
            letters = "".join(map(chr, rng.integers(32, 0xD7FF, size)))
            values[place] = letters.encode() if text else rng.bytes(size)
    elif dtype in ("FP16", "BF16", "FP32", "FP64"):
        kind = {"FP16": np.float16, "BF16": ml_dtypes.bfloat16, "FP32": np.float32, "FP64": np.float64}[dtype]
        values = (rng.standard_normal(count) * 100).astype(kind)
        if count and not text:
            values[rng.integers(0, count)] = rng.choice([np.nan, np.inf, -np.inf])
    else:
        kind = np.dtype(dtype.lower())
        limits = np.iinfo(kind)
        values = rng.integers(limits.min, limits.max, count, dtype=kind, endpoint=True)
    return np.asarray(values).reshape(shape)


def same(left: np.ndarray, right: np.ndarray) -> bool:
    """Returns whether shape and every value are equal, NaN included."""
    if left.shape != right.shape:
        return False
    if right.dtype == object:
        return [x.encode() if isinstance(x, str) else x for x in left.reshape(-1)] == list(right.reshape(-1))
    return left.dtype == right.dtype and left.tobytes() == right.tobytes()
