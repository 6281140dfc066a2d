"""Defines the inputs and the features of a spec as a user writes them, and checks each of them by itself."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    StrictInt,
    model_serializer,
    model_validator,
)

from storage.errors import ConfigError
from storage.features.dtypes import TIME_DTYPES, ColumnType, Dtype, TimeUnit, element_type, integer_range
from storage.features.fallback import MOST_LEVELS
from storage.features.strict_model import StrictModel
from storage.features.transforms import MAX_LENGTH, Length, Transform, finite_number
from storage.initializers import AbsentRows, Initializer, InitializerKind


def plain_scalar(value: Any) -> Any:
    """Returns a bool, int, float or str as it is. Raises ValueError for anything else, so that no type is guessed."""
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"expected a value, got {type(value).__name__}")
    return finite_number(value) if isinstance(value, float) else value


# The endings of the tensors that accompany an input's own on the wire and in golden files; no input may end so.
COMPANIONS = (".lengths", ".valid", ".offsets", ".data", ".ends")
Scalar = Annotated[bool | int | float | str, BeforeValidator(plain_scalar)]
_NAME = re.compile(r"[^\s\x00-\x1f\x7f](?:[^\x00-\x1f\x7f]{0,254}[^\s\x00-\x1f\x7f])?")
_PART_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}")


class WireInput(NamedTuple):
    """A tensor that a request may carry."""

    name: str
    dtype: str
    #: The shape without the batch; -1 for a length of the client's choice.
    dims: tuple[int, ...]
    optional: bool


class InputSpec(StrictModel):
    """One raw input of a request."""

    name: str
    dtype: Dtype
    kind: Literal["fixed", "list"] = "fixed"
    width: Annotated[StrictInt, Field(ge=1, le=65_536)] = 1
    side: Literal["item", "user"] = "item"
    missing: Literal["error", "null"] = "error"
    #: Whether a value may be null.
    nulls: Literal["allow", "error"] = "allow"
    default: Scalar | tuple[Scalar, ...] | None = None
    empty: Literal["value", "empty", "null"] | None = None
    max_length: Length = 1024
    #: The training column that the input comes from; its name by default.
    column: str | None = None
    #: The type of the column's values in training, which the trainer records; data of another type is refused.
    column_type: ColumnType | None = None
    #: The unit of the integers of that column when they are times. Requests carry every time in microseconds.
    unit: TimeUnit | None = None
    #: Whether the column, and a row of a JSON request, may hold lists of lists, whose values follow one another.
    flatten: StrictBool = False

    @model_serializer(mode="wrap")
    def _without_default(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Servers that do not know `flatten` read all specs but those that need it.
        return {key: value for key, value in handler(self).items() if key != "flatten" or value}

    @model_validator(mode="after")
    def _check(self) -> InputSpec:
        _check_name(self.name)
        if self.flatten and self.kind != "list":
            raise ValueError(f"input {self.name!r} is fixed, so it has nothing to flatten; use kind: list")
        if self.unit is not None and self.dtype not in TIME_DTYPES:
            raise ValueError(
                f"input {self.name!r}: `unit` is for times, which are microseconds and need the dtype "
                f"{' or '.join(TIME_DTYPES)}, got {self.dtype}"
            )
        if self.kind == "list":
            self._check_list()
        else:
            self._check_fixed()
        if self.nulls == "error" and (self.missing == "null" or self.default is not None or self.empty_is_null):
            raise ValueError(
                f"input {self.name!r}: with `nulls: error` nothing is null, so `default`, `missing: null` and "
                "`empty: null` mean nothing; leave them out"
            )
        if self.default is not None:
            for value in self.default if isinstance(self.default, tuple) else (self.default,):
                _check_default(self.name, self.dtype, value)
        return self

    def _check_list(self) -> None:
        if self.width != 1:
            raise ValueError(f"input {self.name!r} is a list, so it has no width; use max_length")
        if self.empty == "value":
            raise ValueError(f"input {self.name!r} is a list: `empty` is 'empty' or 'null'")
        if self.default is not None and not isinstance(self.default, tuple):
            raise ValueError(f"input {self.name!r} is a list, so its default is a list, got {self.default!r}")
        if isinstance(self.default, tuple) and len(self.default) > self.max_length:
            raise ValueError(f"input {self.name!r}: the default is longer than max_length {self.max_length}")

    def _check_fixed(self) -> None:
        if "max_length" in self.model_fields_set and self.max_length != 1024:
            raise ValueError(f"input {self.name!r} is fixed, so it has no max_length; use width, or kind: list")
        if self.empty == "empty" or (self.empty == "null" and self.dtype != "BYTES"):
            raise ValueError(f"input {self.name!r}: `empty` is for BYTES ('value' or 'null') and for lists")
        if isinstance(self.default, tuple):
            raise ValueError(f"input {self.name!r} is fixed, so its default is one value, got a list")

    @property
    def empty_is_null(self) -> bool:
        """True when an empty string (fixed) or an empty list counts as null."""
        return self.empty == "null"

    @property
    def source(self) -> str:
        """The name of the training column."""
        return self.column or self.name

    def wire_inputs(self) -> list[WireInput]:
        """Returns the tensor and those of its companions that have a meaning, as a request may carry them."""
        is_list = self.kind == "list"
        dims = (-1,) if is_list else (self.width,)
        found = [WireInput(self.name, self.dtype, dims, self.missing == "null")]
        if is_list:
            found.append(WireInput(f"{self.name}.lengths", "INT64", (1,), True))
        if self.nulls == "allow":
            found.append(WireInput(f"{self.name}.valid", "BOOL", (1,) if is_list else dims, True))
        return found


class FeatureAbsent(StrictModel):
    """Says what ids without a row read as in one feature: see storage.initializers.

    seed: makes the values of the kinds that draw them; 0 for the others.
    """

    type: InitializerKind
    scale: float = 0.0
    seed: Annotated[StrictInt, Field(ge=0, lt=2**63)] = 0

    @model_validator(mode="after")
    def _possible(self) -> FeatureAbsent:
        try:
            rows = self.rows
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if rows.is_zero != (self.type == "zeros"):
            raise ValueError(f"absent {self.type} needs a scale other than 0; for zeros say type zeros")
        if rows.seed != self.seed:
            raise ValueError(f"absent {self.type} draws nothing and has no seed, got {self.seed}")
        return self

    @property
    def rows(self) -> AbsentRows:
        """The rows that it describes."""
        return AbsentRows.of(Initializer(self.type, self.scale), self.seed)


class Feature(StrictModel):
    """One feature turns inputs through transforms into ids of a table, columns of a dense group, or integers.

    `table`, `pooling`, `length`, `weights`, `absent` and `fallback` belong to ids, `group` to dense features. The dense
    graph takes integers as they are, int64, without a lookup.
    """

    name: str
    inputs: Annotated[tuple[str, ...], Field(min_length=1, max_length=64)]
    transforms: Annotated[tuple[Transform, ...], Field(max_length=64)] = ()
    output: Literal["ids", "dense", "integers"]
    table: str = ""
    pooling: Literal["sum", "mean", "none", "weighted"] = "sum"
    #: With pooling none only: bags are padded or cut to this length.
    length: Annotated[StrictInt, Field(ge=0, le=MAX_LENGTH)] = 0
    #: With pooling weighted only: the input that holds a weight for each id.
    weights: str = ""
    #: What ids without a row read as in this feature; what the table says by default.
    absent: FeatureAbsent | None = None
    #: What an id without a row reads first: the rows of these features, in their order; `mean` is that of the table.
    fallback: Annotated[tuple[str, ...], Field(max_length=MOST_LEVELS)] = ()
    group: str = "dense"

    @model_validator(mode="after")
    def _check(self) -> Feature:
        if not _PART_NAME.fullmatch(self.name):
            raise ValueError(f"feature name {self.name!r}: 1 to 128 letters, digits, '_', '-', '.' or ':'")
        if self.output != "ids":
            of_ids = self.table or self.length or self.pooling != "sum" or self.weights or self.fallback
            if of_ids or self.absent is not None:
                what = "is dense" if self.output == "dense" else "gives integers"
                raise ValueError(
                    f"feature {self.name!r} {what}: table, pooling, length, weights, absent and fallback are for ids"
                )
            if self.output == "integers" and self.group != "dense":
                raise ValueError(f"feature {self.name!r} gives integers: `group` is for dense features")
            if not _PART_NAME.fullmatch(self.group):
                raise ValueError(f"feature {self.name!r}: the group {self.group!r} is not a plain name")
            return self
        if self.group != "dense":
            raise ValueError(f"feature {self.name!r} gives ids: `group` is for dense features")
        if not self.table:
            raise ValueError(f"feature {self.name!r} gives ids, so it needs a table")
        if self.pooling == "none" and not self.length:
            raise ValueError(f"feature {self.name!r} has pooling none, so it needs a length")
        if self.pooling != "none" and self.length:
            raise ValueError(f"feature {self.name!r} is pooled: `length` is for pooling none; use truncate to cut")
        if (self.pooling == "weighted") != bool(self.weights):
            raise ValueError(
                f"feature {self.name!r}: pooling weighted and `weights`, the input that holds them, go together"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_default(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A spec that says nothing of absent ids is written as before there was anything to say.
        return {key: value for key, value in handler(self).items() if key not in ("absent", "fallback") or value}

    @property
    def absent_rows(self) -> AbsentRows | None:
        """The rows that ids without one read as; None: what the table says."""
        return None if self.absent is None else self.absent.rows


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"input name {name!r}: 1 to 256 printable characters, no space at either end")
    for companion in COMPANIONS:
        if name.endswith(companion):
            raise ValueError(f"input name {name!r}: the ending {companion!r} is kept for a companion of another input")


def _check_default(name: str, dtype: str, value: Scalar) -> None:
    kind = element_type(dtype)
    if dtype == "BOOL":
        fits = isinstance(value, bool)
    elif kind == "bytes":
        fits = isinstance(value, str)
    elif kind == "float":
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        low, high = integer_range(dtype)
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    if not fits:
        raise ValueError(f"input {name!r}: the default {value!r} is no value of {dtype}")
