"""Chooses what the model learns from the column that a user calls the label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from emberline.draft.sample import ColumnSample
from storage.errors import ConfigError
from storage.features.strict_model import did_you_mean

Array = np.ndarray[Any, np.dtype[Any]]

_YES = ("1", "true", "yes", "y", "t", "click", "clicked", "buy", "bought", "purchase", "converted", "positive", "like")
# A column of whole numbers with at most so many values is a rating, and more are a quantity.
_RATINGS_AT_MOST = 20


@dataclass(frozen=True)
class LabelDraft:
    """Holds what is learned from a column."""

    column: str
    #: The label in the configuration, as YAML.
    label: str
    #: What was found, for a comment.
    found: str
    #: The labels of the sample's rows, (N,) float64.
    values: Array
    #: Whether it is a quantity, and not 0 and 1.
    is_quantity: bool = False

    def task(self, name: str, *, weight: float | None = None) -> str:
        """Returns the label as an entry of `tasks`."""
        loss = ", loss: mean_squared_error" if self.is_quantity else ""
        share = "" if weight is None else f", weight: {weight:.2g}"
        return f"  - {{name: {name}, label: {self.label}{loss}{share}}}"


def find_label(columns: list[ColumnSample], label: str, text: Any) -> ColumnSample:
    """Returns the column of the label. text: puts a name into YAML. Raises ConfigError for one that can be none."""
    by_name = {column.name: column for column in columns}
    if label not in by_name:
        raise ConfigError(f"--label: the data has no column {label!r}{did_you_mean(label, by_name)}", field="label")
    column = by_name[label]
    where = f"--label: the column {label!r}"
    if column.kind not in ("integer", "float", "boolean", "text"):
        raise ConfigError(f"{where} is {column.type}, expected numbers, booleans or text", field="label")
    if column.nulls:
        raise ConfigError(
            f"{where} has {column.nulls:,} nulls in {column.rows:,} rows; leave the rows without a label out",
            field="label",
        )
    if column.distinct < 2:
        raise ConfigError(
            f"{where} has one value only ({column.values[0]}) in {column.rows:,} rows, so there is nothing to learn; "
            "name another column, or give data with both outcomes",
            field="label",
        )
    if column.kind == "text" and column.distinct > 2:
        some = ", ".join(map(repr, pc.unique(column.values)[:4].to_pylist()))
        raise ConfigError(
            f"{where} has {column.distinct:,} texts ({some}, ...), expected two; write label: {{column: "
            f"{text(label)}, equals: TEXT}} by hand, or add a column of 0 and 1",
            field="label",
        )
    return column


def draft_label(column: ColumnSample, text: Any) -> LabelDraft:
    """Returns the label of a column that `find_label` accepted. text: puts a name or a value into YAML."""
    name = text(column.name)
    if column.kind == "text":
        counted = {entry["values"]: entry["counts"] for entry in pc.value_counts(column.values).to_pylist()}
        yes = next((value for value in counted if value.lower() in _YES), min(counted, key=lambda v: counted[v]))
        values = np.asarray(pc.equal(column.values, yes).to_numpy(zero_copy_only=False)).astype(np.float64)
        label = f"{{column: {name}, equals: {text(yes)}}}"
        return LabelDraft(column.name, label, f"1 in {values.mean():.1%} of the rows", values)
    numbers = column.numbers()
    distinct = np.unique(numbers)
    if set(distinct.tolist()) <= {0.0, 1.0}:
        return LabelDraft(column.name, name, f"1 in {numbers.mean():.1%} of the rows", numbers)
    if column.distinct == 2:
        values = (numbers == distinct[1]).astype(np.float64)
        label = f"{{column: {name}, equals: {_number(distinct[1])}}}"
        found = f"{_number(distinct[0])} or {_number(distinct[1])}; 1 stands for the latter"
        return LabelDraft(column.name, label, found, values)
    whole = bool((numbers == np.floor(numbers)).all())
    if whole and column.distinct <= _RATINGS_AT_MOST:
        # The bound that halves the rows best, and of two the higher one: 4 of 5 stars.
        bound = min(distinct[:0:-1], key=lambda bound: round(abs(float((numbers >= bound).mean()) - 0.5), 3))
        values = (numbers >= bound).astype(np.float64)
        label = f"{{column: {name}, at_least: {_number(bound)}}}"
        found = f"{_number(distinct[0])} to {_number(distinct[-1])}; {values.mean():.1%} are {_number(bound)} or more"
        return LabelDraft(column.name, label, found, values)
    found = f"a quantity of {distinct[0]:g} to {distinct[-1]:g}, mean {numbers.mean():g}"
    return LabelDraft(column.name, name, found, numbers, is_quantity=True)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
