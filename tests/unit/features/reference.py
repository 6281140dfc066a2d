"""A second feature engine: slow, obvious, value by value in plain Python, sharing no code with the first.

It reads the spec as plain JSON data and rows as Python values: None is null, a fixed input of width 1 is a scalar, of
another width a list; a list input is a list. docs/features.md is what both follow.
"""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
NULL = object()


def mix(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def absorb(state: int, word: int) -> int:
    return mix((state ^ word) + STEP & MASK)


def hash_words(words: list[int], start: int, key: int) -> int:
    state = start
    for word in words:
        state = absorb(state, word)
    return mix(state + key & MASK)


def hash_value(value: int | bytes, key: int) -> int:
    if isinstance(value, int):
        return hash_words([value & MASK], key, key)
    padded = value + b"\0" * (-len(value) % 8)
    words = list(struct.unpack(f"<{len(padded) // 8}Q", padded))
    return hash_words(words, key + len(value) * STEP & MASK, key)


def hash_key(seed: int, salt: str) -> int:
    return hash_value(salt.encode(), mix(seed + STEP & MASK))


def to_id(hashed: int, buckets: int | None) -> int:
    return hashed >> 1 if buckets is None else hashed * buckets >> 64


def run_reference(
    spec: dict[str, Any], rows: dict[str, list[Any]], batch: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Computes the features of a request.

    Returns dense: group -> rows of floats (doubles, before float32), and ids: feature -> rows of ids, or of (id,
    weight).
    """
    inputs = {entry["name"]: entry for entry in spec["inputs"]}
    dense: dict[str, Any] = {}
    ids: dict[str, Any] = {}
    for feature in spec["features"]:
        for row in range(batch):
            values = transform(feature, [row_values(inputs[name], rows.get(name), row) for name in feature["inputs"]])
            if feature.get("weights"):
                raw = row_values(inputs[feature["weights"]], rows.get(feature["weights"]), row)
                ids.setdefault(feature["name"], []).append(
                    weighted(feature, inputs[feature["inputs"][0]], rows, row, raw)
                )
            elif feature["output"] == "ids":
                kept = [value for value in values if value is not NULL]
                kept = kept[: feature["length"]] if feature.get("length") else kept
                ids.setdefault(feature["name"], []).append(kept)
            else:
                group = dense.setdefault(feature.get("group", "dense"), [[] for _ in range(batch)])
                group[row].extend(0.0 if value is NULL else float(value) for value in values)
    return dense, ids


def weighted(
    feature: dict[str, Any], entry: dict[str, Any], rows: dict[str, list[Any]], row: int, weights: list[Any]
) -> list[tuple[Any, float]]:
    """Returns the (id, weight) pairs of a row.

    Every transform but `add` is run on a single pair at a time, or moves pairs as a whole.
    """
    pairs = list(zip(row_values(entry, rows.get(entry["name"]), row), weights, strict=True))
    for op in feature.get("transforms", []):
        if op["op"] in ("select", "slice", "truncate"):
            pairs = step(op, pairs)
        elif op["op"] == "add":
            added = step(op, [value for value, _ in pairs])
            pairs = [(value, weight) for value, (_, weight) in zip(added, pairs, strict=True)]
        else:
            pairs = [(step(op, [value])[0], weight) for value, weight in pairs]
    return [(value, weight) for value, weight in pairs if value is not NULL]


def row_values(entry: dict[str, Any], column: list[Any] | None, row: int) -> list[Any]:
    raw = None if column is None else column[row if len(column) > 1 else 0]
    if entry.get("kind", "fixed") == "list":
        if raw is None or (raw == [] and entry.get("empty") == "null"):
            raw = list(entry.get("default") or [])
        return [internal(entry, value) for value in raw]
    width = entry.get("width", 1)
    flat = [None] * width if raw is None else (raw if width > 1 else [raw])
    return [fixed_value(entry, value) for value in flat]


def fixed_value(entry: dict[str, Any], value: Any) -> Any:
    null = (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (entry.get("empty") == "null" and value in (b"", ""))
    )
    if not null:
        return internal(entry, value)
    return NULL if entry.get("default") is None else internal(entry, entry["default"])


def internal(entry: dict[str, Any], value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    if entry["dtype"] in ("FP32", "FP64"):
        if math.isnan(value):
            return NULL
        return float(value) if entry["dtype"] == "FP64" else struct.unpack("<f", struct.pack("<f", value))[0]
    if isinstance(value, int):
        number = int(value)
        return number - 2**64 if number >= 2**63 else number
    return value


def transform(feature: dict[str, Any], inputs: list[list[Any]]) -> list[Any]:
    values = inputs[0]
    for op in feature.get("transforms", []):
        values = cross(op, inputs) if op["op"] == "cross" else step(op, values)
    return values


def cross(op: dict[str, Any], inputs: list[list[Any]]) -> list[Any]:
    key = hash_key(op.get("seed", 0), "")
    present = [[value for value in values if value is not NULL] for values in inputs]
    combinations = list(itertools.product(*present))
    if len(combinations) > op.get("max", 1024):
        raise ValueError("too many combinations")
    return [
        to_id(hash_words([hash_value(value, key) for value in values], key, key), op.get("buckets"))
        for values in combinations
    ]


def step(op: dict[str, Any], values: list[Any]) -> list[Any]:
    match op["op"]:
        case "select":
            return [values[op["index"]]]
        case "slice":
            return values[op.get("start", 0) : op["stop"]]
        case "truncate":
            return values[-op["length"] :] if op.get("keep") == "last" else values[: op["length"]]
        case "pad":
            return values + [op.get("value", 0)] * (op["length"] - len(values))
        case "is_null":
            return [int(value is NULL) for value in values]
        case "fill":
            filler = op["value"].encode() if isinstance(op["value"], str) else op["value"]
            return [filler if value is NULL else value for value in values]
        case "add":
            amounts = op["values"] * (len(values) if len(op["values"]) == 1 else 1)
            return [
                NULL if value is NULL else (value + amount + 2**63) % 2**64 - 2**63
                for value, amount in zip(values, amounts, strict=True)
            ]
        case "split":
            pieces = [piece for value in values if value is not NULL for piece in value.split(op["delimiter"].encode())]
            if len([piece for piece in pieces if piece]) > op.get("max", 1024):
                raise ValueError("too many pieces")
            return [piece for piece in pieces if piece]
    return [NULL if value is NULL else one(op, value) for value in values]


def one(op: dict[str, Any], value: Any) -> Any:
    match op["op"]:
        case "hash":
            return to_id(hash_value(value, hash_key(op.get("seed", 0), op.get("salt", ""))), op.get("buckets"))
        case "floor_divide":
            return value // op["divisor"]
        case "modulo":
            return value % op["divisor"]
        case "multiply":
            return (value * op["factor"] + 2**63) % 2**64 - 2**63
        case "replace":
            low, high = op.get("low"), op.get("high")
            is_inside = (low is None or low <= value) and (high is None or value <= high)
            return op["by"] if is_inside != op.get("outside", False) else value
        case "integer":
            number = math.trunc(value) if math.isfinite(value) else -(2**63)
            return number if -(2**63) <= number < 2**63 else -(2**63)
        case "hour" | "weekday":
            seconds = value // {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[op.get("unit", "us")]
            seconds += 60 * op.get("utc_offset_minutes", 0)
            return seconds // 3600 % 24 if op["op"] == "hour" else (seconds // 86400 + 3) % 7
        case "standardise":
            return (float(value) - op["mean"]) / op["std"]
        case "vocabulary":
            known = [entry.encode() if isinstance(entry, str) else entry for entry in op["values"]]
            if value in known:
                return known.index(value)
            return NULL if op.get("unknown", "absent") == "absent" else op["unknown"]
        case "bucketise":
            return sum(boundary <= float(value) for boundary in op["boundaries"])
        case "log":
            return math.log1p(max(float(value), 0.0))
        case "clip":
            low, high = op.get("min"), op.get("max")
            number = float(value)
            number = max(number, low) if low is not None else number
            return float(min(number, high) if high is not None else number)
        case "affine":
            return float(value) * op.get("scale", 1.0) + op.get("shift", 0.0)
    raise AssertionError(op)
