"""Traces the type of the values, and their number in a row, through a feature's transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from storage.features.dtypes import ElementType, element_type
from storage.features.feature import Feature, InputSpec
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

_WORDS = {"bytes": "BYTES", "int64": "integers", "float": "floats"}


@dataclass(frozen=True, slots=True)
class Flow:
    """The type and the number of the values between two transforms: a row has `low` to `high` of them."""

    type: ElementType
    low: int
    high: int

    @property
    def is_fixed(self) -> bool:
        """True when every row has the same number of values."""
        return self.low == self.high


def input_flow(spec: InputSpec) -> Flow:
    """Returns the flow of a raw input."""
    if spec.kind == "fixed":
        return Flow(element_type(spec.dtype), spec.width, spec.width)
    return Flow(element_type(spec.dtype), 0, spec.max_length)


def trace(feature: Feature, inputs: Sequence[InputSpec]) -> Flow:
    """Returns a feature's flow after all its transforms. Raises ValueError naming a transform that does not fit."""
    flows = [input_flow(spec) for spec in inputs]
    flow = flows[0]
    crosses = bool(feature.transforms) and isinstance(feature.transforms[0], Cross)
    if len(flows) > 1 and not crosses:
        raise ValueError(f"feature {feature.name!r} has {len(flows)} inputs, so its first transform must be a cross")
    for position, op in enumerate(feature.transforms):
        try:
            flow = _cross(op, flows, position) if isinstance(op, Cross) else _step(op, flow)
        except ValueError as error:
            raise ValueError(f"feature {feature.name!r}, transforms[{position}] ({op.op}): {error}") from None
    _check_output(feature, flow)
    return flow


def _cross(op: Cross, flows: Sequence[Flow], position: int) -> Flow:
    if position:
        raise ValueError("a cross must come first")
    if len(flows) < 2:
        raise ValueError("a cross needs two inputs or more")
    if any(flow.type == "float" for flow in flows):
        raise ValueError("a cross takes integers and BYTES, not floats")
    return Flow("int64", prod(flow.low for flow in flows), min(op.max, prod(flow.high for flow in flows)))


def _step(op: Transform, flow: Flow) -> Flow:
    match op:
        case Hash():
            _expect(flow, "bytes", "int64")
            return replace(flow, type="int64")
        case FloorDivide() | Modulo() | Multiply() | Replace() | Hour() | Weekday():
            _expect(flow, "int64")
            return flow
        case Add():
            _expect(flow, "int64")
            if len(op.values) > 1 and not (flow.is_fixed and flow.high == len(op.values)):
                raise ValueError(f"adds to {len(op.values)} columns, but a row has {flow.low} to {flow.high} values")
            return flow
        case Integer():
            _expect(flow, "float")
            return replace(flow, type="int64")
        case Vocabulary():
            _expect(flow, "bytes", "int64")
            wanted = str if flow.type == "bytes" else int
            if not isinstance(op.values[0], wanted):
                raise ValueError(f"the values must be {'strings' if wanted is str else 'integers'}, as the input is")
            return replace(flow, type="int64")
        case Bucketise():
            _expect(flow, "int64", "float")
            return replace(flow, type="int64")
        case Log() | Clip() | Affine() | Standardise():
            _expect(flow, "int64", "float")
            return replace(flow, type="float")
        case IsNull():
            if not flow.is_fixed:
                raise ValueError("takes an input of fixed width, but gets a list, whose nulls are left out")
            return replace(flow, type="int64")
        case Fill():
            _check_value(op.value, flow)
            return flow
        case Split():
            _expect(flow, "bytes")
            return replace(flow, low=0, high=op.max)
        case Select():
            return _cut(flow, op.index, op.index + 1)
        case Slice():
            return _cut(flow, op.start, op.stop)
        case Truncate():
            return replace(flow, low=min(flow.low, op.length), high=min(flow.high, op.length))
        case Pad():
            _check_value(op.value, flow)
            return replace(flow, low=max(flow.low, op.length), high=max(flow.high, op.length))
        case _:
            raise ValueError(f"no rule for {op.op!r}")


def _expect(flow: Flow, *types: ElementType) -> None:
    if flow.type not in types:
        allowed = " or ".join(_WORDS[entry] for entry in types)
        raise ValueError(f"takes {allowed}, but gets {_WORDS[flow.type]}")


def _cut(flow: Flow, start: int, stop: int) -> Flow:
    if not flow.is_fixed:
        raise ValueError("takes an input of fixed width, but gets a list; use truncate")
    if not start < stop <= flow.high:
        raise ValueError(f"the columns {start} to {stop} do not lie in a width of {flow.high}")
    return replace(flow, low=stop - start, high=stop - start)


def _check_value(value: object, flow: Flow) -> None:
    if flow.type == "bytes":
        fits = isinstance(value, str)
    elif flow.type == "int64":
        fits = isinstance(value, int) and -(2**63) <= value < 2**63
    else:
        fits = isinstance(value, int | float) and math.isfinite(value)
    if not fits or isinstance(value, bool):
        raise ValueError(f"the value {value!r} does not fit {_WORDS[flow.type]}")


def _check_output(feature: Feature, flow: Flow) -> None:
    if feature.output != "dense" and flow.type != "int64":
        what = "ids" if feature.output == "ids" else "`integers`"
        remedy = "end with hash or vocabulary" if flow.type == "bytes" else "end with bucketise"
        raise ValueError(f"feature {feature.name!r} gives {_WORDS[flow.type]}, but {what} are integers: {remedy}")
    if feature.output == "dense" and flow.type == "bytes":
        raise ValueError(f"feature {feature.name!r} gives BYTES, but a dense feature is a number")
    if feature.output != "ids" and not flow.is_fixed:
        what = "a dense feature has" if feature.output == "dense" else "`integers` have"
        raise ValueError(
            f"feature {feature.name!r} gives {flow.low} to {flow.high} values a row, but {what} a fixed "
            "number of them: end with truncate and pad to one length"
        )
