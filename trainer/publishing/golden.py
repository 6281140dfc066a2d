"""Golden requests: varied raw rows out of the sample, and the cases that break servers.

These are nulls in every input that takes them, ids that no table has, empty lists, and at least one row of every table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from storage.checkpoint import TableData
from storage.errors import CheckpointError
from storage.features import Column, FeatureEngine, FeatureSpec, InputSpec, column_from_rows
from storage.features.dtypes import INTEGERS, integer_range
from storage.features.fallback import MEAN
from storage.features.python_rows import column_rows
from storage.features.weights import matched_levels, matched_weights
from trainer.publishing.lookup_half import TableRows, find_rows

# Rows beside the drawn ones; a model of a thousand inputs must not make a golden file of a hundred thousand rows.
_EXTRA_AT_MOST = 1024
_ROWS_A_CASE = 2
_ROWS_A_TABLE = 2
_ABSENT_OFFSET = 977

Row = dict[str, Any]


def golden_columns(
    sample: Mapping[str, Column],
    spec: FeatureSpec,
    tables: Sequence[TableData],
    count: int,
    pools: Sequence[Mapping[str, Column]] = (),
) -> tuple[dict[str, Column], int]:
    """Makes at least `count` rows of raw features; returns the columns and how many rows they have.

    pools: raw rows that were trained on lately, used for tables that no row of the sample reaches any more. Raises
    CheckpointError when none of all these rows reaches some table.
    """
    inputs = [as_sent(entry, [sample, *pools]) for entry in spec.inputs]
    values = {entry.name: column_rows(sample[entry.name]) for entry in inputs}
    rows = drawn_rows(values, count)
    rows += [*fallback_cases(rows, inputs, spec), *hard_cases(rows, inputs, spec)][:_EXTRA_AT_MOST]
    rows += _reaching_rows(rows, inputs, spec, tables)
    for pool in pools:
        missed = _missed(columns_of_rows(inputs, rows, spec), len(rows), spec, tables)
        if not missed:
            break
        rows += spare_rows(FeatureEngine(spec), pool, missed)
    columns = columns_of_rows(inputs, rows, spec)
    _check_reached(columns, len(rows), spec, tables)
    return columns, len(rows)


def as_sent(entry: InputSpec, pools: Sequence[Mapping[str, Column]]) -> InputSpec:
    """Returns the input with the integer or float type of the raw rows, which a request may send, if they have one."""
    dtypes = {pool[entry.name].dtype for pool in pools}
    return entry.model_copy(update={"dtype": dtypes.pop()}) if len(dtypes) == 1 else entry


def drawn_rows(values: Mapping[str, list[Any]], count: int) -> list[Row]:
    """Draws `count` rows spread over the sample. A small sample is repeated, each input in another order."""
    rows = max(len(column) for column in values.values())
    picked = np.linspace(0, rows - 1, min(rows, count)).round().astype(int).tolist()
    drawn = [{name: column[row % len(column)] for name, column in values.items()} for row in picked]
    rng = np.random.default_rng(0)
    while len(drawn) < count:
        places = {name: int(rng.integers(0, len(column))) for name, column in values.items()}
        drawn.append({name: column[places[name]] for name, column in values.items()})
    return drawn


def hard_cases(
    rows: Sequence[Row], inputs: Sequence[InputSpec], spec: FeatureSpec, copies: int = _ROWS_A_CASE
) -> list[Row]:
    """Makes `copies` rows a case: nulls in all inputs that take them and in each, empty lists, absent ids."""
    feeds = {name: {f.output for f in spec.features if name in f.inputs} for name in (entry.name for entry in inputs)}
    nulls = {entry.name: None for entry in inputs if entry.nulls == "allow"}
    cases: list[Row] = [{**rows[0], **nulls}] if nulls else []
    for number, entry in enumerate(inputs):
        replacements: list[Any] = [None] if entry.name in nulls else []
        if entry.kind == "list":
            replacements.append([])
        if feeds[entry.name] == {"ids"}:
            replacements += _absent_values(entry)
        for place, replacement in enumerate(replacements):
            for copy in range(copies):
                base = rows[(number * 7 + place * 3 + copy * 11) % len(rows)]
                case = replacement(base[entry.name]) if callable(replacement) else replacement
                cases.append({**base, entry.name: case})
    return cases


def fallback_cases(
    rows: Sequence[Row], inputs: Sequence[InputSpec], spec: FeatureSpec, copies: int = _ROWS_A_CASE
) -> list[Row]:
    """Makes `copies` rows for each level of each chain, in which the ids of the levels before it are absent."""
    by_name = {entry.name: entry for entry in inputs}
    cases: list[Row] = []
    for feature in spec.ids_features:
        missing: dict[str, Any] = {}
        for place, level in enumerate((feature.name, *feature.fallback) if feature.fallback else ()):
            for name in spec.feature(level).inputs if level != MEAN else ():
                missing.update((name, each) for each in _absent_values(by_name[name])[:1])
            for copy in range(copies):
                base = rows[(place * 5 + copy * 11) % len(rows)]
                cases.append({**base, **missing})
    return cases


def _absent_values(entry: InputSpec) -> list[Any]:
    """Returns values that no training data holds, as the input sends them; functions take the row's own value."""
    if entry.dtype in INTEGERS:
        low, high = integer_range(entry.dtype)
        absent: list[Any] = [high - _ABSENT_OFFSET, low + _ABSENT_OFFSET]
    elif entry.dtype == "BYTES":
        absent = [b"\x00no such value", b""]
    else:
        return []
    if entry.kind == "list":
        # Replaces an element, so that no list grows beyond what its input or a cross allows.
        return [absent[:1], lambda row: [absent[1], *(row or [])[1:]]]
    if entry.width > 1:
        return [[value] * entry.width for value in absent] + [
            lambda row: [absent[0], *(row if isinstance(row, list) else [absent[0]] * entry.width)[1:]]
        ]
    return absent


def _reaching_rows(
    rows: Sequence[Row], inputs: Sequence[InputSpec], spec: FeatureSpec, tables: Sequence[TableData]
) -> list[Row]:
    """Returns a row for each table that `rows` do not reach and whose ids can be sent unchanged."""
    missed = _missed(columns_of_rows(inputs, rows, spec), len(rows), spec, tables)
    by_name = {entry.name: entry for entry in inputs}
    extra: list[Row] = []
    for table in missed:
        row = dict(rows[0])
        for feature in spec.ids_features:
            entry = by_name[feature.inputs[0]]
            if feature.table != table.name or feature.transforms or entry.dtype not in INTEGERS:
                continue
            low, high = integer_range(entry.dtype)
            fitting = table.ids[(table.ids >= max(low, -(2**63))) & (table.ids <= min(high, 2**63 - 1))]
            if len(fitting):
                value = int(fitting[len(fitting) // 2])
                row[entry.name] = value if entry.kind == "fixed" and entry.width == 1 else [value] * entry.width
        extra.append(row)
    return extra


def spare_rows(engine: FeatureEngine, pool: Mapping[str, Column], missed: Sequence[TableRows]) -> list[Row]:
    """Returns some rows of `pool` for each table, each reaching a row of it; empty when the pool has none."""
    count = max(column.rows for column in pool.values())
    batch = engine.run(pool, count)
    rows: list[Row] = []
    for table in missed:
        places: list[int] = []
        for feature in engine.spec.ids_features:
            if feature.table == table.name:
                bags = batch.ids[feature.name]
                found = find_rows(table, bags.values)[1]
                places += np.unique(np.repeat(np.arange(count), bags.lengths())[found]).tolist()
        rows += [_row_of(pool, place) for place in places[:_ROWS_A_TABLE]]
    return rows


def _row_of(pool: Mapping[str, Column], place: int) -> Row:
    # An input of one row stands for all rows.
    at = {name: min(place, column.rows - 1) for name, column in pool.items()}
    return {name: column_rows(column.slice(at[name], at[name] + 1))[0] for name, column in pool.items()}


def _check_reached(columns: Mapping[str, Column], rows: int, spec: FeatureSpec, tables: Sequence[TableData]) -> None:
    missed = _missed(columns, rows, spec, tables)
    if missed:
        raise CheckpointError(
            f"no golden request reaches a row of the table {missed[0].name!r} ({len(missed[0].ids)} rows); give a "
            "sample with ids that the table knows"
        )


def _missed(
    columns: Mapping[str, Column], rows: int, spec: FeatureSpec, tables: Sequence[TableData]
) -> list[TableData]:
    batch = FeatureEngine(spec).run(columns, rows)
    missed: list[TableData] = []
    for table in tables:
        if table.name in spec.mean_tables:
            continue  # no id of a request leads there: `fallback_cases` do
        features = [feature.name for feature in spec.ids_features if feature.table == table.name]
        reached = any(find_rows(table, batch.ids[name].values)[1].any() for name in features)
        if len(table.ids) and not reached:
            missed.append(table)
    return missed


def columns_of_rows(inputs: Sequence[InputSpec], rows: Sequence[Row], spec: FeatureSpec) -> dict[str, Column]:
    """Turns rows of raw values by input into columns; weights and levels are made to match the ids of a row."""
    matched = [matched_weights(spec, matched_levels(spec, row)) for row in rows]
    return {entry.name: column_from_rows(entry, [row[entry.name] for row in matched]) for entry in inputs}
