"""The feature transforms in plain Python, one row at a time, written from docs/features.md."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def absorb(state: int, word: int) -> int:
    return mix(((state ^ word) + STEP) & MASK)


def hash_bytes(value: bytes, key: int) -> int:
    state = (key + len(value) * STEP) & MASK
    for at in range(0, len(value), 8):
        state = absorb(state, int.from_bytes(value[at : at + 8].ljust(8, b"\0"), "little"))
    return mix((state + key) & MASK)


def hash_value(value: Any, key: int) -> int:
    if isinstance(value, bytes):
        return hash_bytes(value, key)
    return mix((absorb(key, value & MASK) + key) & MASK)


@functools.cache
def key_of(seed: int, salt: str) -> int:
    return hash_bytes(salt.encode(), mix((seed + STEP) & MASK))


def id_of(hashed: int, buckets: int | None) -> int:
    return hashed >> 1 if buckets is None else hashed * buckets >> 64


def apply(op: dict[str, Any], values: list[Any]) -> list[Any]:
    """One transform on the values of one row; None is null and keeps its place."""
    kind = op["op"]
    if kind == "truncate":
        return values[: op["length"]] if op.get("keep", "first") == "first" else values[-op["length"] :]
    if kind == "pad":
        return values + [op["value"]] * (op["length"] - len(values))
    if kind == "select":
        return [values[op["index"]]]
    if kind == "slice":
        return values[op["start"] : op["stop"]]
    if kind == "is_null":
        return [1 if value is None else 0 for value in values]
    if kind == "fill":
        value = op["value"].encode() if isinstance(op["value"], str) else op["value"]
        return [value if entry is None else entry for entry in values]
    if kind == "add":
        amounts = op["values"] if len(op["values"]) > 1 else op["values"] * len(values)
        return [None if value is None else wrapped(value + n) for value, n in zip(values, amounts, strict=True)]
    if kind == "split":
        pieces = [value.split(op["delimiter"].encode()) for value in values if value is not None]
        return [piece for piece in itertools.chain.from_iterable(pieces) if piece]
    return [None if value is None else one(op, value) for value in values]


def wrapped(value: int) -> int:
    """The int64 that a sum becomes."""
    return (value + 2**63) % 2**64 - 2**63


def one(op: dict[str, Any], value: Any) -> Any:
    kind = op["op"]
    if kind == "hash":
        return id_of(hash_value(value, key_of(op["seed"], op.get("salt") or "")), op.get("buckets"))
    if kind == "floor_divide":
        return value // op["divisor"]
    if kind == "modulo":
        return value % op["divisor"]
    if kind == "multiply":
        return wrapped(value * op["factor"])
    if kind == "replace":
        low, high = (op.get(end) for end in ("low", "high"))
        inside = (low is None or value >= low) and (high is None or value <= high)
        return op["by"] if inside != bool(op.get("outside")) else value
    if kind == "integer":
        return int(value) if math.isfinite(value) and -(2**63) <= value < 2**63 else -(2**63)
    if kind in ("hour", "weekday"):
        seconds = value // {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[op.get("unit") or "us"]
        days, second = divmod(seconds + 60 * (op.get("utc_offset_minutes") or 0), 86_400)
        return second // 3600 if kind == "hour" else (days - 4) % 7
    if kind == "standardise":
        return (float(value) - op["mean"]) / op["std"]
    if kind == "vocabulary":
        words = [word.encode() if isinstance(word, str) else word for word in op["values"]]
        if value in words:
            return words.index(value)
        unknown = op.get("unknown", "absent")
        return None if unknown == "absent" else unknown
    if kind == "bucketise":
        return sum(boundary <= value for boundary in op["boundaries"])
    if kind == "log":
        return math.log1p(max(float(value), 0.0))
    if kind == "clip":
        low, high = op.get("min"), op.get("max")
        value = float(value)
        value = value if low is None else max(value, low)
        return value if high is None else min(value, high)
    if kind == "affine":
        return float(value) * op["scale"] + op["shift"]
    raise AssertionError(f"the reference does not know {kind}")


def cross(op: dict[str, Any], columns: list[list[Any]]) -> list[int]:
    key = key_of(op["seed"], "")
    found = []
    for combination in itertools.product(*[[value for value in column if value is not None] for column in columns]):
        state = key
        for value in combination:
            state = absorb(state, hash_value(value, key))
        found.append(id_of(mix((state + key) & MASK), op.get("buckets")))
    return found


def raw_values(entry: dict[str, Any], row: dict[str, Any]) -> list[Any]:
    """The values of one input of one row, before any transform."""
    given = row.get(entry["name"])
    default = entry.get("default")
    if entry["kind"] == "list":
        if given is None or (len(given) == 0 and entry.get("empty") == "null"):
            given = default or []
        values = [clean(entry, value) for value in given]
        return values if entry["dtype"] in {"FP32", "FP64"} else [value for value in values if value is not None]
    values = [clean(entry, value) for value in (given if isinstance(given, list) else [given])]
    if entry.get("empty") == "null":
        values = [None if value == b"" else value for value in values]
    return [clean(entry, default) if value is None else value for value in values]


def clean(entry: dict[str, Any], value: Any) -> Any:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        return value.encode()
    if entry["dtype"] in {"FP32", "FP64"}:
        return float(np.float32(value)) if entry["dtype"] == "FP32" else float(value)
    if isinstance(value, int):  # two's complement, as ids are
        return (int(value) + 2**63) % 2**64 - 2**63
    return value


def run_feature(spec: dict[str, Any], feature: dict[str, Any], row: dict[str, Any]) -> list[Any]:
    """Ids of an ids feature, numbers of a dense one."""
    inputs = {entry["name"]: entry for entry in spec["inputs"]}
    columns = [raw_values(inputs[name], row) for name in feature["inputs"]]
    ops = feature["transforms"]
    if ops and ops[0]["op"] == "cross":
        values: list[Any] = cross(ops[0], columns)
        ops = ops[1:]
    else:
        values = columns[0]
    for op in ops:
        values = apply(op, values)
    if feature["output"] == "dense":
        return [0.0 if value is None else float(np.float32(value)) for value in values]
    return [value for value in values if value is not None]


def run_weighted(spec: dict[str, Any], feature: dict[str, Any], row: dict[str, Any]) -> list[tuple[int, float]]:
    """The ids of a weighted feature, each with its weight: whatever moves or drops an id takes its weight along."""
    inputs = {entry["name"]: entry for entry in spec["inputs"]}
    values = raw_values(inputs[feature["inputs"][0]], row)
    weights = raw_values(inputs[feature["weights"]], row)
    pairs = list(zip(values, weights, strict=True))
    for op in feature["transforms"]:
        if op["op"] in ("truncate", "select", "slice"):
            pairs = apply(op, pairs)
        else:
            pairs = [(apply(op, [value])[0], weight) for value, weight in pairs]
    return [(value, weight) for value, weight in pairs if value is not None]
