"""Describes the transforms of a feature as data; the C++ engine runs them."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from storage.features.dtypes import TimeUnit
from storage.features.strict_model import StrictModel, did_you_mean

MAX_LENGTH = 1 << 20


def finite_number(value: Any) -> float:
    """Returns an int or a float as a float. Raises ValueError for anything else, and for a number not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("expected a finite number")
    return number


Int64 = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
Seed = Annotated[StrictInt, Field(ge=0, lt=2**63)]
Buckets = Annotated[StrictInt, Field(ge=1, lt=2**63)]
Length = Annotated[StrictInt, Field(ge=1, le=MAX_LENGTH)]
Number = Annotated[float, BeforeValidator(finite_number)]


class Hash(StrictModel):
    """Hashes bytes or int64 to int64: 63 bits, or [0, buckets). Different seeds and salts give unrelated ids."""

    op: Literal["hash"] = "hash"
    seed: Seed = 0
    salt: StrictStr = ""
    buckets: Buckets | None = None


class FloorDivide(StrictModel):
    """Maps int64 to int64: the value divided by `divisor`, rounded down."""

    op: Literal["floor_divide"] = "floor_divide"
    divisor: Buckets


class Modulo(StrictModel):
    """Maps int64 to int64 in [0, divisor): what `floor_divide` leaves over."""

    op: Literal["modulo"] = "modulo"
    divisor: Buckets


class Add(StrictModel):
    """Maps int64 to int64: the value plus the one of `values`, or plus that of its column; it wraps around."""

    op: Literal["add"] = "add"
    values: Annotated[tuple[Int64, ...], Field(min_length=1, max_length=65_536)]


class Multiply(StrictModel):
    """Maps int64 to int64: the value times `factor`; it wraps around."""

    op: Literal["multiply"] = "multiply"
    factor: Int64


class Replace(StrictModel):
    """Maps int64 to int64: `by` for values from `low` to `high`, or for all others with `outside`."""

    op: Literal["replace"] = "replace"
    low: Int64 | None = None
    high: Int64 | None = None
    outside: StrictBool = False
    by: Int64

    @model_validator(mode="after")
    def _has_a_range(self) -> Replace:
        if self.low is None and self.high is None:
            raise ValueError("replace needs low, high or both")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"replace: low {self.low} is above high {self.high}")
        return self


class Integer(StrictModel):
    """Maps float to int64: the value without what stands behind the point; -2**63 for what no int64 holds."""

    op: Literal["integer"] = "integer"


class Vocabulary(StrictModel):
    """Maps bytes or int64 to the position in `values`. Other values are left out, or get the id `unknown`."""

    op: Literal["vocabulary"] = "vocabulary"
    values: tuple[StrictStr, ...] | tuple[Int64, ...] = Field(min_length=1)
    unknown: Literal["absent"] | Int64 = "absent"

    @model_validator(mode="before")
    @classmethod
    def _one_type(cls, value: Any) -> Any:
        values = value.get("values") if isinstance(value, dict) else None
        if isinstance(values, list | tuple):
            if any(isinstance(entry, bool) or not isinstance(entry, int | str) for entry in values):
                odd = next(e for e in values if isinstance(e, bool) or not isinstance(e, int | str))
                raise ValueError(f"vocabulary values are strings or integers, got {odd!r} ({type(odd).__name__})")
            if len({type(entry) for entry in values}) > 1:
                raise ValueError("vocabulary values are all strings or all integers, got both; quote the integers")
            if len(set(values)) != len(values):
                twice = next(entry for entry, count in Counter(values).items() if count > 1)
                raise ValueError(f"vocabulary value {twice!r} stands twice")
        return value


class Bucketise(StrictModel):
    """Maps int64 or float to int64, the number of boundaries <= the value: n boundaries give the ids 0 to n."""

    op: Literal["bucketise"] = "bucketise"
    boundaries: tuple[Number, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _ascending(self) -> Bucketise:
        for before, after in pairwise(self.boundaries):
            if not before < after:
                raise ValueError(f"boundaries must ascend strictly, but {after:g} follows {before:g}")
        return self


class Log(StrictModel):
    """Maps int64 or float to float: log(1 + max(x, 0))."""

    op: Literal["log"] = "log"


class Clip(StrictModel):
    """Limits int64 or float, as float, to no less than `min` and no more than `max`; either may be left out."""

    op: Literal["clip"] = "clip"
    min: Number | None = None
    max: Number | None = None

    @model_validator(mode="after")
    def _has_a_bound(self) -> Clip:
        if self.min is None and self.max is None:
            raise ValueError("clip needs min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"clip: min {self.min:g} is above max {self.max:g}")
        return self


class Affine(StrictModel):
    """Maps int64 or float to float: x * scale + shift."""

    op: Literal["affine"] = "affine"
    scale: Number = 1.0
    shift: Number = 0.0


class Standardise(StrictModel):
    """Maps int64 or float to float: (x - mean) / std."""

    op: Literal["standardise"] = "standardise"
    mean: Number
    std: Annotated[Number, Field(gt=0.0)]


class Hour(StrictModel):
    """Maps a time, an int64 since 1970 in `unit`, to the hour of its day, 0 to 23."""

    op: Literal["hour"] = "hour"
    #: Microseconds are what the engine makes of timestamps.
    unit: TimeUnit = "us"
    #: Minutes that are added to UTC, such as 120 for UTC+2.
    utc_offset_minutes: Annotated[StrictInt, Field(ge=-1440, le=1440)] = 0


class Weekday(StrictModel):
    """Maps a time, an int64 since 1970 in `unit`, to the day of its week: 0 for Monday to 6 for Sunday."""

    op: Literal["weekday"] = "weekday"
    unit: TimeUnit = "us"
    utc_offset_minutes: Annotated[StrictInt, Field(ge=-1440, le=1440)] = 0


class IsNull(StrictModel):
    """Maps any fixed value to 1 if it is null, and to 0 if it is not."""

    op: Literal["is_null"] = "is_null"


class Fill(StrictModel):
    """Replaces nulls by `value`."""

    op: Literal["fill"] = "fill"
    value: StrictBool | StrictInt | StrictFloat | StrictStr


class Split(StrictModel):
    """Splits bytes at each `delimiter` into a list; empty pieces are left out.

    A row with more than `max` pieces is refused.
    """

    op: Literal["split"] = "split"
    delimiter: Annotated[StrictStr, Field(min_length=1)]
    max: Length = 1024


class Cross(StrictModel):
    """Maps k >= 2 inputs of bytes or int64 to int64: one id for each combination, the last input varying fastest.

    A row with more than `max` combinations is refused.
    """

    op: Literal["cross"] = "cross"
    seed: Seed = 0
    buckets: Buckets | None = None
    max: Length = 1024


class Select(StrictModel):
    """Selects the value at `index` of a fixed input of width > 1."""

    op: Literal["select"] = "select"
    index: Annotated[StrictInt, Field(ge=0)]


class Slice(StrictModel):
    """Selects the values from `start` to before `stop` of a fixed input of width > 1."""

    op: Literal["slice"] = "slice"
    start: Annotated[StrictInt, Field(ge=0)] = 0
    stop: Annotated[StrictInt, Field(ge=1)]


class Truncate(StrictModel):
    """Keeps at most `length` values of a row: the first ones, or the last ones in their order."""

    op: Literal["truncate"] = "truncate"
    length: Length
    keep: Literal["first", "last"] = "first"


class Pad(StrictModel):
    """Pads a shorter row at its end with `value` to `length` values."""

    op: Literal["pad"] = "pad"
    length: Length
    value: StrictBool | StrictInt | StrictFloat | StrictStr = 0


_Op = (
    Hash
    | FloorDivide
    | Modulo
    | Add
    | Multiply
    | Replace
    | Integer
    | Hour
    | Weekday
    | Vocabulary
    | Bucketise
    | Log
    | Clip
    | Affine
    | Standardise
    | IsNull
    | Fill
    | Split
    | Cross
    | Select
    | Slice
    | Truncate
    | Pad
)
OPS: tuple[str, ...] = tuple(get_args(model.model_fields["op"].annotation)[0] for model in get_args(_Op))


def _known_op(value: Any) -> Any:
    if isinstance(value, dict):
        if "op" not in value:
            raise ValueError(f"a transform needs an `op`, one of: {', '.join(OPS)}")
        if value["op"] not in OPS:
            raise ValueError(f"unknown op {value['op']!r}{did_you_mean(str(value['op']), OPS)}")
    return value


Transform = Annotated[Annotated[_Op, Field(discriminator="op")], BeforeValidator(_known_op)]
