"""The ids that are to be forgotten, by table, and the raw values that they were made of.

A user knows raw values, such as the number of an account; tables know ids, which the feature engine makes of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from storage.errors import InvalidInput
from storage.features import Column, Feature, FeatureEngine, FeatureSpec, InputSpec, column_from_rows
from storage.features.dtypes import INTEGERS, integer_range, parse_integer
from storage.features.python_rows import column_rows
from storage.features.strict_model import did_you_mean
from storage.features.transforms import Fill, Hash, Pad, Select, Slice, Transform, Truncate, Vocabulary


@dataclass(frozen=True)
class Wanted:
    """Says what is to be forgotten."""

    #: Ids (n,) int64 ascending, each once, by table.
    tables: Mapping[str, np.ndarray]
    #: Raw values by input; empty where ids were given.
    values: Mapping[str, frozenset[Any]] = field(default_factory=dict)
    #: Features whose rows belong to several values, each with the reason: they are not found.
    shared: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_ids(cls, tables: Mapping[str, Sequence[int] | np.ndarray]) -> Wanted:
        """Returns ids by table, in any order."""
        return cls({name: np.unique(np.asarray(ids, np.int64)) for name, ids in tables.items()})

    @property
    def count(self) -> int:
        """Number of ids, of all tables together."""
        return sum(len(ids) for ids in self.tables.values())

    def among(self, table: str, ids: np.ndarray) -> np.ndarray:
        """Returns the places in `ids` (n,) int64, in any order, of those that are to be forgotten."""
        wanted = self.tables.get(table)
        if wanted is None or not len(wanted) or not len(ids):
            return np.empty(0, np.int64)
        found = [np.empty(0, np.int64)]
        for start in range(0, len(ids), _IDS_AT_ONCE):
            part = ids[start : start + _IDS_AT_ONCE]
            place = np.minimum(np.searchsorted(wanted, part), len(wanted) - 1)
            found.append(start + np.flatnonzero(wanted[place] == part))
        return np.concatenate(found)

    def rows_holding(self, engine: FeatureEngine, columns: Mapping[str, Column], rows: int) -> np.ndarray:
        """Returns which of some raw rows lead to one of the ids, or hold one of the values, (rows,) bool."""
        holding = np.zeros(rows, np.bool_)
        if not rows:
            return holding
        batch = engine.run(columns, rows)
        for feature in engine.spec.ids_features:
            if feature.table in self.tables:
                bags = batch.ids[feature.name]
                owners = np.repeat(np.arange(rows), bags.lengths())
                holding[owners[self.among(feature.table, bags.values)]] = True
        for name, values in self.values.items():
            if name in columns:
                held = [_holds(row, values) for row in column_rows(columns[name])]
                holding |= np.array(held if len(held) == rows else held * rows, np.bool_)
        return holding

    def values_behind(self, feature: Feature, entry: InputSpec) -> frozenset[Any] | None:
        """Returns the values of an input of which a feature makes the ids; None where they cannot be known.

        None of them where values of one input were given, and rows of the feature belong to several values: those stay.
        """
        ids = self.tables[feature.table]
        if entry.name in self.values:
            return self.values[entry.name]
        if len(feature.inputs) == 1 and entry.dtype in INTEGERS and _keeps_values(feature):
            return frozenset(number % 2**64 if entry.dtype == "UINT64" else number for number in ids.tolist())
        if self.values and _why_shared(feature):
            return frozenset()
        for values in self.values.values():
            if _fit(values, entry):
                made, _ = _ids(entry, feature, sorted(values))
                if not len(np.setdiff1d(ids, made)):
                    return values
        return None


def wanted_values(spec: FeatureSpec, name: str, texts: Sequence[str]) -> Wanted:
    """Returns the ids that the features of an input make of raw values, given as text.

    Only features of which each value has an id of its own count; the others are named in `shared`. Raises InvalidInput
    for an unknown input, for a value that its type cannot hold, and when no feature is left.
    """
    known = {entry.name: entry for entry in spec.inputs}
    if name not in known:
        raise InvalidInput(f"input {name!r} is not one of the model's{did_you_mean(name, known)}", field="input")
    entry = known[name]
    values = [_value(entry, text, line) for line, text in enumerate(texts, 1)]
    tables: dict[str, list[np.ndarray]] = {}
    shared: dict[str, str] = {}
    for feature in spec.ids_features:
        if name not in feature.inputs:
            continue
        if reason := _why_shared(feature):
            shared[feature.name] = reason
        else:
            ids, common = _ids(entry, feature, values)
            tables.setdefault(feature.table, []).append(ids)
            if common:
                shared[feature.name] = (
                    f"gives {common:,} of the values the id of nulls or unknown values; its row stays"
                )
    if not tables:
        why = "".join(f"; {feature} {reason}" for feature, reason in shared.items())
        raise InvalidInput(f"input {name!r}: no feature gives its values ids of their own{why}", field="input")
    wanted = {table: np.unique(np.concatenate(parts)) for table, parts in tables.items()}
    return Wanted(wanted, {name: frozenset(values)}, shared)


_IDS_AT_ONCE = 1 << 20


def _why_shared(feature: Feature) -> str:
    if len(feature.inputs) > 1:
        return "crosses it with other inputs, whose values are not known here"
    for step in feature.transforms:
        if isinstance(step, Hash) and step.buckets is not None:
            return f"hashes into {step.buckets} buckets, whose rows several values share"
        if not isinstance(step, Hash | Vocabulary | Fill | Pad | Select | Slice | Truncate):
            return f"makes ids by {step.op}, which several values share"
    return ""


def why_no_values(feature: Feature, entry: InputSpec) -> str:
    """Returns why the values of an input behind ids of a feature are not known, and what to do about it."""
    if reason := _why_shared(feature):
        return f"the feature {feature.name!r} {reason}, so no option finds them; delete the file"
    return f"the feature {feature.name!r} makes other ids of its values; give the values with --input {entry.name}"


def _keeps_values(feature: Feature) -> bool:
    """Returns whether the ids of a feature are values of its input; those of nulls and padding are nobody's values."""
    return all(isinstance(step, Fill | Pad | Select | Slice | Truncate) for step in feature.transforms)


def _fit(values: frozenset[Any], entry: InputSpec) -> bool:
    """Returns whether an input can hold values of another one."""
    if entry.dtype not in INTEGERS:
        return entry.dtype == "BYTES" and all(isinstance(value, bytes) for value in values)
    low, high = integer_range(entry.dtype)
    return all(isinstance(value, int) and low <= value <= high for value in values)


def _ids(entry: InputSpec, feature: Feature, values: Sequence[Any]) -> tuple[np.ndarray, int]:
    """Returns the ids of raw values, and how many are left out, as nulls and unknown values have them too."""
    # The feature by itself takes no other input; selecting a place of a row means nothing where all are equal.
    steps: tuple[Transform, ...] = tuple(step for step in feature.transforms if not isinstance(step, Pad))
    plain = {"pooling": "sum", "weights": "", "length": 0, "fallback": ()}
    alone = feature.model_copy(update={**plain, "transforms": steps})
    engine = FeatureEngine(FeatureSpec(inputs=(entry,), features=(alone,)))
    many = entry.kind == "list" or entry.width > 1
    rows = [[value] * entry.width if many else value for value in values]
    made = engine.run({entry.name: column_from_rows(entry, rows)}, len(rows)).ids[feature.name].values
    common = [step.unknown for step in steps if isinstance(step, Vocabulary) and step.unknown != "absent"]
    if entry.nulls == "allow":
        common += engine.run({entry.name: column_from_rows(entry, [None])}, 1).ids[feature.name].values.tolist()
    own = np.setdiff1d(made, np.array(common, np.int64))
    return own, len(np.unique(made)) - len(own)


def _value(entry: InputSpec, text: str, line: int) -> Any:
    if entry.dtype == "BYTES":
        return text.encode("utf-8", "surrogateescape")  # as `read_values` decodes bytes that are no UTF-8
    if entry.dtype not in INTEGERS:
        raise InvalidInput(
            f"input {entry.name!r} is {entry.dtype}; expected one of text or whole numbers", field="input"
        )
    number = parse_integer(text, entry.dtype)
    if number is None:
        low, high = integer_range(entry.dtype)
        raise InvalidInput(
            f"value {line}, {text[:60]!r}, is no {entry.dtype} of the input {entry.name!r}; expected a whole number "
            f"from {low} to {high}, of digits alone",
            field="ids",
        )
    return number


def _holds(row: Any, values: frozenset[Any]) -> bool:
    return any(value in values for value in row) if isinstance(row, list) else row in values
