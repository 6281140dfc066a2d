"""Builds the C++ program of a spec, call by call; nothing of the spec is parsed in C++."""

from __future__ import annotations

import math
from typing import Any

from storage._features import Builder, Program
from storage.features.dtypes import DTYPES, ElementType, element_type
from storage.features.feature import Feature, InputSpec
from storage.features.spec import FeatureSpec
from storage.features.transforms import (
    Add,
    Affine,
    Bucketise,
    Clip,
    Cross,
    Fill,
    FloorDivide,
    Hash,
    Hour,
    Integer,
    IsNull,
    Log,
    Modulo,
    Multiply,
    Pad,
    Replace,
    Select,
    Slice,
    Split,
    Standardise,
    Transform,
    Truncate,
    Vocabulary,
    Weekday,
)

_INT64 = (-(2**63), 2**63 - 1)
_DAY_S = 24 * 3600
_WEEK_S = 7 * _DAY_S
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def build_program(spec: FeatureSpec) -> Program:
    """Builds the program of a valid spec."""
    builder = Builder()
    for entry in spec.inputs:
        _add_input(builder, entry)
    places = {entry.name: place for place, entry in enumerate(spec.inputs)}
    groups = list(spec.dense_groups)
    filled = dict.fromkeys(groups, 0)
    for feature in spec.features:
        inputs = [places[name] for name in feature.inputs]
        if feature.output != "dense":
            weights = places[feature.weights] if feature.weights else None
            builder.add_ids_feature(feature.name, inputs, feature.length, weights)
        else:
            width = spec.flow(feature.name).high
            builder.add_dense_feature(feature.name, inputs, groups.index(feature.group), filled[feature.group], width)
            filled[feature.group] += width
        _add_transforms(builder, feature, element_type(spec.input(feature.inputs[0]).dtype))
    return builder.build(list(spec.dense_groups.values()))


def _add_input(builder: Builder, entry: InputSpec) -> None:
    default: list[Any] | None = None
    if entry.default is not None:
        values = entry.default if isinstance(entry.default, tuple) else (entry.default,)
        default = [_native(entry.dtype, value) for value in values]
    builder.add_input(
        entry.name,
        DTYPES.index(entry.dtype),
        entry.kind == "list",
        entry.width,
        entry.max_length,
        entry.side == "user",
        entry.missing == "null",
        entry.empty_is_null,
        default,
    )


def _native(dtype: str, value: Any) -> bytes | int | float:
    """Converts a default to the engine's form: UTF-8, two's complement, double."""
    match element_type(dtype):
        case "bytes":
            return str(value).encode()
        case "float":
            return float(value)
        case _:
            number = int(value)
            return number - 2**64 if number >= 2**63 else number


def _add_transforms(builder: Builder, feature: Feature, kind: ElementType) -> None:
    for op in feature.transforms:
        _add_transform(builder, op, kind)
        if isinstance(op, Hash | Vocabulary | Bucketise | Cross | IsNull | Integer):
            kind = "int64"
        elif isinstance(op, Log | Clip | Affine | Standardise):
            kind = "float"


def _add_transform(builder: Builder, op: Transform, kind: ElementType) -> None:
    match op:
        case Hash():
            builder.hash(op.seed, op.salt, op.buckets or 0)
        case FloorDivide():
            builder.floor_divide(op.divisor)
        case Modulo():
            builder.modulo(op.divisor)
        case Add():
            builder.add(op.values)
        case Multiply():
            builder.multiply(op.factor)
        case Replace():
            low, high = (end if value is None else value for end, value in zip(_INT64, (op.low, op.high), strict=True))
            builder.replace(low, high, op.outside, op.by)
        case Integer():
            builder.integer()
        case Vocabulary():
            values = [value.encode() if isinstance(value, str) else value for value in op.values]
            builder.vocabulary(values, None if op.unknown == "absent" else op.unknown)
        case Bucketise():
            builder.bucketise(op.boundaries)
        case Log():
            builder.log()
        case Clip():
            builder.clip(-math.inf if op.min is None else op.min, math.inf if op.max is None else op.max)
        case Affine():
            builder.affine(op.scale, op.shift)
        case Standardise():
            builder.standardise(op.mean, op.std)
        case Hour():
            builder.part_of_week(_PER_SECOND[op.unit], op.utc_offset_minutes * 60 % _WEEK_S, _DAY_S, 3600)
        case Weekday():
            # 1970 began on a Thursday, three days after a Monday.
            shift = (op.utc_offset_minutes * 60 + 3 * _DAY_S) % _WEEK_S
            builder.part_of_week(_PER_SECOND[op.unit], shift, _WEEK_S, _DAY_S)
        case IsNull():
            builder.is_null()
        case Fill():
            _add_fill(builder, op, kind)
        case Split():
            builder.split(op.delimiter.encode(), op.max)
        case Cross():
            builder.cross(op.seed, op.buckets or 0, op.max)
        case Select():
            builder.slice(op.index, op.index + 1)
        case Slice():
            builder.slice(op.start, op.stop)
        case Truncate():
            builder.truncate(op.length, op.keep == "last")
        case Pad():
            _add_pad(builder, op, kind)
        case _:
            raise TypeError(f"no builder for {op.op!r}")


def _add_pad(builder: Builder, op: Pad, kind: ElementType) -> None:
    match kind:
        case "bytes":
            builder.pad_bytes(op.length, str(op.value).encode())
        case "float":
            builder.pad_floats(op.length, float(op.value))
        case _:
            builder.pad_ints(op.length, int(op.value))


def _add_fill(builder: Builder, op: Fill, kind: ElementType) -> None:
    match kind:
        case "bytes":
            builder.fill_bytes(str(op.value).encode())
        case "float":
            builder.fill_floats(float(op.value))
        case _:
            builder.fill_ints(int(op.value))
