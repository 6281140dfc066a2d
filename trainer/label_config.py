"""The label: a column of 0 and 1, or a comparison that makes one of another column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    StrictInt,
    StrictStr,
    model_serializer,
    model_validator,
)

from storage.errors import InvalidInput
from storage.features.strict_model import StrictModel
from storage.features.transforms import Number

Array = np.ndarray[Any, np.dtype[Any]]

_ADVICE = "leave such rows out, or let their task ignore them (missing_label: ignore)"
_BOUNDS = ("at_least", "above", "at_most", "below")


def _number(value: Any) -> Any:
    # Whole numbers stay integers, so that they are compared exactly.
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if not isinstance(value, float):
        raise ValueError(f"expected a number, got {value!r}")
    return value


Bound = Annotated[StrictInt | Number | None, BeforeValidator(_number)]
Value = StrictBool | StrictInt | Number | StrictStr


class LabelConfig(StrictModel):
    """A column, and what makes its label 1: every bound that is given, or being one of the values.

    Without any of them the column itself holds 0 and 1.
    """

    column: StrictStr = Field(min_length=1)
    at_least: Bound = None
    above: Bound = None
    at_most: Bound = None
    below: Bound = None
    #: One value, or a list of values.
    equals: Value | Annotated[tuple[Value, ...], Field(min_length=1, max_length=10_000)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> LabelConfig:
        bounds = dict(self._bounds())
        if self.equals is not None and bounds:
            raise ValueError(f"`equals` stands alone, but {', '.join(bounds)} is given too; leave one of them out")
        low, high = ([bounds[name] for name in names if name in bounds] for names in (_BOUNDS[:2], _BOUNDS[2:]))
        if len(low) == 2 or len(high) == 2:
            raise ValueError(f"expected one lower and one upper bound at most, got {', '.join(bounds)}")
        empty = low and high and (low[0] > high[0] or (low[0] == high[0] and len({"above", "below"} & set(bounds)) > 0))
        if empty:
            raise ValueError(f"no number is {' and '.join(f'{name} {value}' for name, value in bounds.items())}")
        if len({isinstance(value, str) for value in self.values}) > 1:
            raise ValueError("`equals` lists texts or numbers, got both; quote the numbers if the column holds text")
        return self

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> Any:
        found = {key: value for key, value in handler(self).items() if value is not None}
        return found if self.compares else self.column

    def _bounds(self) -> Iterator[tuple[str, int | float]]:
        for name in _BOUNDS:
            if getattr(self, name) is not None:
                yield name, getattr(self, name)

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of `equals`."""
        return () if self.equals is None else self.equals if isinstance(self.equals, tuple) else (self.equals,)

    @property
    def compares(self) -> bool:
        """True when the label is a comparison, false when the column holds it."""
        return bool(self.values) or any(True for _ in self._bounds())

    @property
    def is_text(self) -> bool:
        """True when the column is compared with text; any other label is read from numbers or booleans."""
        return bool(self.values) and isinstance(self.values[0], str)

    def described(self) -> str:
        """Returns the column with its comparison, for people: `rating at_least 4`."""
        bounds = [f"{name} {bound}" for name, bound in self._bounds()]
        equals = [f"equals {' or '.join(map(str, self.values))}"] if self.values else []
        return " ".join([self.column, " and ".join([*bounds, *equals])]).rstrip()

    def read(self, table: Any, *, may_miss: bool = False) -> Array:
        """Returns the labels of a pyarrow Table, (N,) numbers: 0 and 1 if it compares, else what the column holds.

        may_miss: a null and NaN give NaN; else a null, and NaN where it compares, raise InvalidInput.
        """
        column = table.column(self.column)
        if may_miss:
            present = np.asarray(pc.invert(pc.is_null(column, nan_is_null=pa.types.is_floating(column.type))))
            if not present.all():
                found = np.full(len(column), np.nan)
                found[present] = self._read(column.filter(pa.array(present)))
                return found
        if column.null_count:
            raise InvalidInput(f"the label column {self.column!r} holds nulls; {_ADVICE}", field=self.column)
        return self._read(column)

    def _read(self, column: Any) -> Array:
        if self.is_text:
            text = column.cast(pa.large_string())
            return np.asarray(pc.is_in(text, pa.array(self.values, pa.large_string()))).astype(np.float32)
        numbers = np.asarray((column.cast(pa.uint8()) if pa.types.is_boolean(column.type) else column).to_numpy())
        if not self.compares:
            return numbers
        if numbers.dtype.kind == "f" and np.isnan(numbers).any():
            raise InvalidInput(f"the label column {self.column!r} holds NaN; {_ADVICE}", field=self.column)
        return self._compared(numbers).astype(np.float32)

    def _compared(self, numbers: Array) -> Array:
        if self.values:
            is_one: Array = np.any([numbers == value for value in self.values], axis=0)
            return is_one
        compare = {"at_least": np.greater_equal, "above": np.greater, "at_most": np.less_equal, "below": np.less}
        lies_within: Array = np.all([compare[name](numbers, bound) for name, bound in self._bounds()], axis=0)
        return lies_within


def _as_mapping(content: Any) -> Any:
    if isinstance(content, str):
        return {"column": content}
    if not isinstance(content, Mapping | LabelConfig):
        raise ValueError(
            "expected the name of a column of 0 and 1, or a comparison such as {column: rating, at_least: 4}, got "
            f"{content!r}"
        )
    return content


#: In a configuration, the name of a column stands for a label that compares nothing.
Label = Annotated[LabelConfig, BeforeValidator(_as_mapping)]
