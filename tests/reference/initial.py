"""Makes the rows that ids without one read as, in plain Python, written from docs/format.md."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.reference.transforms import MASK, STEP, mix


def absent_row(entry: dict[str, Any] | None, dim: int, value: int) -> np.ndarray:
    """The row of an id, (dim,) float64, before any rounding to a row type. entry: the manifest's `absent`, or None."""
    if entry is None:
        return np.zeros(dim)
    if entry["type"] == "constant":
        return np.full(dim, np.float64(np.float32(entry["scale"])))
    base = (mix((value + STEP) & MASK) + mix(int(entry["seed"], 16))) & MASK
    return np.float64(np.float32(entry["scale"])) * np.array([drawn(entry["type"], base, j) for j in range(dim)])


def drawn(kind: str, base: int, place: int) -> float:
    bits = mix((base + place * STEP) & MASK)
    if kind == "uniform":
        return (bits >> 40) * 2.0**-23 - 1.0
    value = gaussian(bits)
    while kind == "truncated_normal" and abs(value) > 2.0:
        place += 1 << 32
        value = gaussian(mix((base + place * STEP) & MASK))
    return value


def gaussian(bits: int) -> float:
    radius = ((bits >> 32) + 1) * 2.0**-32
    angle = (bits & 0xFFFFFFFF) * 2.0**-32
    return math.sqrt(-2.0 * math.log(radius)) * math.cos(2.0 * math.pi * angle)


def of_feature(feature: dict[str, Any], table: dict[str, Any]) -> dict[str, Any] | None:
    """Returns how absent ids of a feature read: as features.json says, or else the manifest's table."""
    own = feature.get("absent")
    if own is None:
        found: dict[str, Any] | None = table.get("absent")
        return found
    return None if own["type"] == "zeros" else {**own, "seed": f"{own['seed']:x}"}


def rounded(row_type: str, row: np.ndarray) -> np.ndarray:
    """A row as a table of this type stores it, written from docs/format.md."""
    single = row.astype(np.float32)
    if row_type == "fp16":
        return single.astype(np.float16).astype(np.float64)
    if row_type == "bf16":
        bits = single.view(np.uint32)
        return (
            (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32).astype(np.float64)
        )
    if row_type == "int8":
        scale = np.float32(np.abs(single).max() / np.float32(127))
        return np.float64(scale) * np.rint(single / scale).astype(np.float64) if scale else np.zeros(len(row))
    return single.astype(np.float64)
