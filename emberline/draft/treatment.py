"""Chooses the input, the features and the table of a column from what its values are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from emberline.draft.raw_text import looks_like_json, looks_like_numbers
from emberline.draft.sample import ColumnSample
from storage.features.column_types import is_list

_ID = re.compile(r"(^|_)(id|ids|key|hash|code|zip|zipcode|postcode|sku|asin|isbn|uuid|user|item|product|category)(_|$)")
_TIME = re.compile(r"(^|_)(time|timestamp|ts|date|datetime|at|when|created|updated)(_|$)")
# 1990-01-01 and 2040-01-01 in seconds: integers between them may be times.
_TIMES = (631_152_000, 2_208_988_800)
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DELIMITERS = ("|", ";", ",")
_NULLS_FROM = 0.01
#: Ranges that numbers are cut into.
BINS = 16
# Each bucket is about a quarter wider than the one before: counts of all sizes share these bounds.
_COUNT_BOUNDS = (
    *(0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 63, 80, 100, 130, 160, 200, 250, 320, 400, 500, 630, 800),
    *(1000, 1600, 2500, 4000, 6300, 10_000, 16_000, 25_000, 63_000, 160_000),
)
_LONG_LIST = 100
_SEQUENCE = 50
_RARE_FROM = 10_000
_COUNTS_FROM = 5
_DENSE = "output: dense"

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class FeatureDraft:
    """A feature of a column: the same transforms for several columns become one entry."""

    #: Behind the column's name.
    suffix: str
    transforms: tuple[str, ...]
    #: The rest of the entry; `$each` is the column's name.
    rest: str


@dataclass(frozen=True)
class Treatment:
    """Says what becomes of a column."""

    #: The options of its input.
    input: str
    features: tuple[FeatureDraft, ...]
    #: The options of its own table beside name and dim; None without one.
    table: str | None
    #: What was found, for a comment; columns of one kind share a line.
    found: str


def treat(
    column: ColumnSample,
    *,
    shared: str | None = None,
    is_sequence: bool = False,
    as_ids: bool = False,
    bins: int = 0,
) -> Treatment | None:
    """Returns what becomes of a column; None for a list of numbers of several lengths.

    shared: the column whose table a list shares. is_sequence: the order of the list counts. as_ids: these values
    are ids. bins: numbers become ids of so many ranges, as a model without any id needs; 0: as they
    are.
    """
    match column.kind:
        case "list":
            return _list(column, shared, is_sequence=is_sequence)
        case "text":
            return _ids(column, ("{op: hash, salt: $each}",), "dtype: BYTES") if as_ids else _text(column)
        case "time":
            has_hours = not pa.types.is_date(column.type)
            return _time(column, "us", "dtype: INT64", has_hours=has_hours)
        case "boolean":
            return Treatment("dtype: BOOL", (*_number_feature(()), *_is_null(column)), None, "yes or no")
    unit = unit_of_time(column)
    if unit is not None:
        return _time(column, unit, "dtype: INT64", has_hours=True)
    if column.kind == "integer" and (as_ids or is_id(column)):
        return _ids(column, (), f"dtype: {'UINT64' if pa.types.is_uint64(column.type) else 'INT64'}")
    made = _number(column, bins)
    if column.kind == "float" and _ID.search(_words(column.name)) and bool(np.all(column.numbers() % 1 == 0)):
        return replace(made, found=f"{made.found}; if these are ids, write 123 for 123.0 and draft anew")
    return made


def is_id(column: ColumnSample) -> bool:
    """Returns whether integers are ids: by their name, or because they are spread over a wide range."""
    if column.kind != "integer":
        return False
    numbers = np.abs(column.numbers())
    # Counts and prices lie near their low end; ids that were hashed or spread lie anywhere.
    is_spread = bool(numbers.max() >= 1e7 and np.median(numbers) * 50 > numbers.max())
    return is_spread or (column.distinct > 2 and bool(_ID.search(_words(column.name))))


def _words(name: str) -> str:
    """Returns a name in lower case with _ between its words: of userId, user-id and user id, user_id."""
    parted = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"[^a-z0-9]+", "_", parted.lower())


def unit_of_time(column: ColumnSample) -> str | None:
    """Returns the unit of integers that are times since 1970, by their name and range; None for others."""
    if column.kind != "integer" or not _TIME.search(_words(column.name)):
        return None
    numbers = column.numbers()
    low, high = float(numbers.min()), float(numbers.max())
    return next((unit for unit, many in _UNITS.items() if _TIMES[0] <= low / many and high / many <= _TIMES[1]), None)


def _time(column: ColumnSample, unit: str, given: str, *, has_hours: bool) -> Treatment:
    option = "" if unit == "us" else f", unit: {unit}"
    parts = [FeatureDraft("_weekday", (f"{{op: weekday{option}}}",), "output: ids, table: weekdays")]
    if has_hours:
        parts.insert(0, FeatureDraft("_hour", (f"{{op: hour{option}}}",), "output: ids, table: hours"))
    what = "a time" if unit == "us" else f"a time in {unit}"
    found = f"{what}: hour and weekday in UTC; the time itself would not come again"
    return Treatment(given, tuple(parts), None, found)


def _ids(column: ColumnSample, transforms: tuple[str, ...], given: str) -> Treatment:
    hashed = (*transforms, "{op: fill, value: -1}") if column.kind == "text" or column.nulls else transforms
    rest = "output: ids, table: $each"
    return Treatment(given, (FeatureDraft("", hashed, rest),), _admission(column), "ids")


def _admission(column: ColumnSample) -> str:
    # Rows of ids that come once memorise what they came with.
    return "admit_after: 2" if column.distinct >= _RARE_FROM else ""


def _text(column: ColumnSample) -> Treatment:
    texts = pc.unique(column.values)
    whole = ""
    if looks_like_numbers(texts):
        whole = "looks like numbers, taken as ids; write 1234.5 for 1.234,5 or 1,234.5 to have numbers"
    elif looks_like_json(texts):
        whole = "JSON, each text taken as one id; write 1|2|3 and give the input kind: list to have lists"
    if whole:
        return replace(_ids(column, ("{op: hash, salt: $each}",), "dtype: BYTES"), found=whole)
    delimiter = _delimiter(texts)
    if delimiter is None:
        return _ids(column, ("{op: hash, salt: $each}",), "dtype: BYTES")
    steps = (f'{{op: split, delimiter: "{delimiter}"}}', "{op: hash, salt: $each}")
    rest = "output: ids, table: $each, pooling: mean"
    found = f"several words between {delimiter!r}, which become a list of ids"
    return Treatment("dtype: BYTES", (FeatureDraft("", steps, rest),), _admission(column), found)


def _delimiter(texts: Any) -> str | None:
    """Returns what separates words of a text; None unless the words come again far more often than the texts."""
    for delimiter in _DELIMITERS:
        several = pc.sum(pc.match_substring(texts, delimiter)).as_py() or 0
        if several * 3 < len(texts):
            continue
        pieces = pc.unique(pc.split_pattern(texts, delimiter).flatten())
        if len(pieces) * 2 <= len(texts):
            return delimiter
    return None


def _list(column: ColumnSample, shared: str | None, *, is_sequence: bool) -> Treatment | None:
    assert column.lengths is not None
    is_nested = is_list(column.type) and is_list(column.type.value_type)
    longest = int(column.lengths.max(initial=0))
    if pa.types.is_floating(column.values.type):
        width = int(column.lengths.min(initial=longest))
        if width != longest or column.nulls or is_nested or not 1 <= width <= 1024:
            return None
        return Treatment(f"dtype: FP32, width: {width}", _number_feature(()), None, "vectors of numbers")
    is_text = pa.types.is_string(column.values.type) or pa.types.is_large_string(column.values.type)
    dtype = "BYTES" if is_text else "UINT64" if pa.types.is_uint64(column.values.type) else "INT64"
    room = max(1024, 1 << (2 * longest - 1).bit_length())
    given = f"dtype: {dtype}, kind: list" + ("" if room == 1024 else f", max_length: {room}")
    given += ", flatten: true" if is_nested else ""
    table = "$each" if shared is None else shared
    steps = (f"{{op: hash, salt: {table}}}",) if is_text else ()
    length = min(longest, _SEQUENCE if is_sequence else _LONG_LIST)
    if longest > length:
        steps = (*steps, f"{{op: truncate, length: {length}, keep: last}}")
    pooling = f"pooling: none, length: {length}" if is_sequence else "pooling: mean"
    rest = f"output: ids, table: {table}, {pooling}"
    found = f"{'lists of ' if is_nested else ''}lists of ids, up to {longest} values"
    found += "" if shared is None else f"; ids of {shared}"
    return Treatment(given, (FeatureDraft("", steps, rest),), _admission(column) if shared is None else None, found)


def _number(column: ColumnSample, bins: int) -> Treatment:
    numbers = column.numbers()
    finite = numbers[np.isfinite(numbers)]
    # A dense feature has to be finite.
    clip: tuple[str, ...] = ()
    if len(finite) < len(numbers):
        clip = (f"{{op: clip, min: {_short(finite.min())}, max: {_short(finite.max())}}}",)
    numbers = finite
    dtype = "FP32" if column.kind == "float" else "INT64"
    given = f"dtype: {dtype}" + (', missing: "null"' if column.nulls and column.kind == "float" else "")
    nulls = _is_null(column)
    low, high, mean, deviation = numbers.min(), numbers.max(), numbers.mean(), numbers.std()
    if column.distinct < 2:
        return Treatment(given, nulls, None, "one value or null")
    if deviation == 0.0:
        return Treatment(given, (_buckets([float(low)]),), "", "one value or infinite, cut there")
    skew = float(np.mean(((numbers - mean) / deviation) ** 3))
    # A few negative values among counts are marks, such as -1 for unknown; log reads them as 0.
    is_count = skew > 2 and low >= min(0.0, -0.01 * high)
    if bins or (not is_count and np.abs((numbers - mean) / deviation).max() > 30):
        return Treatment(given, (_buckets(_quantiles(numbers, bins or BINS)),), "", "numbers, cut at their quantiles")
    if column.kind == "integer" and low <= _COUNTS_FROM and (is_count or (low >= 0 and skew > 0.5)):
        parts = (_buckets(_COUNT_BOUNDS), FeatureDraft("_log", ("{op: log}", "{op: affine, scale: 0.25}"), _DENSE))
        return Treatment(given, parts, "", "counts: a row for each range, and the logarithm")
    if is_count:
        return Treatment(given, (*_number_feature((*clip, "{op: log}")), *nulls), None, "skewed numbers: logarithm")
    if abs(mean) <= 1.0 and 0.25 <= deviation <= 2.0 and abs(low) <= 20 and high <= 20:
        return Treatment(given, (*_number_feature(clip), *nulls), None, "numbers of about -1 to 1: as they are")
    step = f"{{op: standardise, mean: {_short(mean)}, std: {_short(deviation)}}}"
    return Treatment(given, (*_number_feature((*clip, step)), *nulls), None, "numbers: mean 0, deviation 1")


def _buckets(bounds: Sequence[float]) -> FeatureDraft:
    """Returns ids of the ranges between these bounds, where a null has a row of its own."""
    step = f"{{op: bucketise, boundaries: [{', '.join(f'{bound:.6g}' for bound in bounds)}]}}"
    return FeatureDraft("", (step, "{op: fill, value: -1}"), "output: ids, table: $each")


def _quantiles(numbers: Array, bins: int) -> list[float]:
    """Returns bounds between which about as many numbers lie, as they are written with six digits."""
    bounds = np.quantile(numbers, np.arange(1, bins) / bins)
    return list(dict.fromkeys(float(f"{bound:.6g}") for bound in bounds))


def _number_feature(steps: tuple[str, ...]) -> tuple[FeatureDraft, ...]:
    return (FeatureDraft("", steps, _DENSE),)


def _is_null(column: ColumnSample) -> tuple[FeatureDraft, ...]:
    if column.null_share < _NULLS_FROM:
        return ()
    return (FeatureDraft("_is_null", ("{op: is_null}",), _DENSE),)


def _short(value: float) -> str:
    # YAML 1.1 wants a dot in numbers with an exponent; Emberline's reader does not.
    return f"{value:.4g}"


def shared_columns(columns: Sequence[ColumnSample]) -> Mapping[str, str]:
    """Returns, for lists of ids, the column of single ids whose values they hold."""
    singles = [column for column in columns if column.kind in ("integer", "text") and column.distinct > 20]
    found: dict[str, str] = {}
    for column in columns:
        if column.kind != "list" or pa.types.is_floating(column.values.type) or column.distinct == 0:
            continue
        values = pc.unique(column.values)
        for single in singles:
            if single.values.type != values.type or (single.kind == "integer" and not is_id(single)):
                continue
            share = pc.mean(pc.is_in(values, pc.unique(single.values)).cast("double")).as_py()
            if share is not None and share >= 0.6:
                found.setdefault(column.name, single.name)
    return found
