"""Lists what the old server may do otherwise, from what is known of a model: its tables, features and row types."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from emberline.proving.changes import Change, Hypothesis
from emberline.proving.local_model import LocalModel
from storage.features import FeatureBatch

_SHIFTS = (1, -1, 2, -2)
_POOLINGS = ("sum", "mean", "sqrtn", "max")
# Dense values of which pairs are tried.
_MOST_COLUMNS = 24
_ROW_TYPES = {"fp16": "fp16", "bf16": "bf16", "int8": "int8"}


def candidates(model: LocalModel, features: FeatureBatch) -> Iterator[Hypothesis]:
    """Yields hypotheses that need no fit: shifted ids, exchanged tables, other pooling."""
    yield from _shifts(model)
    yield from _tables(model)
    yield from _swaps(model, features)
    for feature, pooling in model.pooling.items():
        if pooling in ("sum", "mean") and features.ids[feature].lengths().max(initial=0) > 1:
            for other in _POOLINGS:
                if other != pooling:
                    yield Hypothesis(
                        Change(pooling={feature: other}),
                        f"pools {feature} by {other}, where the new one takes the {pooling}",
                        about=feature,
                    )


def roundings(model: LocalModel) -> Iterator[Hypothesis]:
    """Yields hypotheses that leave every value nearly as it is."""
    names = list(model.rows)
    for row_type, text in _ROW_TYPES.items():
        yield Hypothesis(
            Change(rounding=dict.fromkeys(names, row_type)),
            f"stores the rows of all tables as {text}",
            is_rounding=True,
        )
    for name in names if len(names) > 1 else []:
        for row_type, text in _ROW_TYPES.items():
            yield Hypothesis(
                Change(rounding={name: row_type}), f"stores the rows of table {name} as {text}", True, name
            )


def _shifts(model: LocalModel) -> Iterator[Hypothesis]:
    # Tables that lie behind each other in one are read by ids shifted by the sizes of those before.
    counts = [rows.spec.rows for rows in model.rows.values()]
    sums = np.cumsum(counts[:-1]).tolist() if len(counts) > 1 else []
    for feature in model.tables:
        for shift in dict.fromkeys([*_SHIFTS, *(sign * each for each in sums for sign in (1, -1))]):
            yield shifted(feature, shift)


def shifted(feature: str, shift: int) -> Hypothesis:
    """Returns the hypothesis that the old server reads other ids of a feature."""
    what = f"reads the row of id {'+' if shift > 0 else '-'} {abs(shift)} for each id of {feature}"
    return Hypothesis(Change(shifts={feature: shift}), what, about=feature)


def _tables(model: LocalModel) -> Iterator[Hypothesis]:
    tables = model.tables
    alike = {name: [other for other in model.rows if _alike(model, name, other)] for name in model.rows}
    for name, other in combinations(model.rows, 2):
        if other in alike[name]:
            swap = {name: other, other: name}
            readers = {feature: swap[table] for feature, table in tables.items() if table in swap}
            yield Hypothesis(Change(tables=readers), f"has the tables {name} and {other} swapped", about=name)
    for feature, table in tables.items():
        for other in alike[table]:
            yield Hypothesis(
                Change(tables={feature: other}),
                f"reads the table {other} for {feature}, where the new one reads {table}",
                about=feature,
            )


def _swaps(model: LocalModel, features: FeatureBatch) -> Iterator[Hypothesis]:
    """Yields hypotheses that the old server gets the values of two features in each other's places."""
    kinds = {name: (pooling, model.spec.feature(name).length) for name, pooling in model.pooling.items()}
    for name, other in combinations(kinds, 2):
        if kinds[name] == kinds[other]:
            yield Hypothesis(
                Change(sources={name: other, other: name}),
                f"takes {name} for {other}, and {other} for {name}",
                about=name,
            )
    columns = [(group, column) for group, values in features.dense.items() for column in range(values.shape[1])]
    for place, source in combinations(columns, 2) if len(columns) <= _MOST_COLUMNS else ():
        yield Hypothesis(
            Change(columns={place: source, source: place}),
            f"takes {_column(place)} for {_column(source)}, and the other way round",
            about=place[0],
        )


def _column(place: tuple[str, int]) -> str:
    return f"{place[0]}[{place[1]}]"


def _alike(model: LocalModel, name: str, other: str) -> bool:
    return name != other and model.rows[name].spec.dim == model.rows[other].spec.dim
