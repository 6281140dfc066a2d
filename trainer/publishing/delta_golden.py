"""Golden requests of a delta: at least half of them reach rows that it changed, beside the cases that break servers.

An id that a request can carry unchanged is put into one, so every changed row of a small delta is scored. For features
that hash, the raw rows of the pools whose ids changed are taken. The cost is that of the delta and of the pools; no
table is read whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from storage.checkpoint import DeltaTable
from storage.features import Column, FeatureEngine, InputSpec, concat_batches
from storage.features.python_rows import column_rows
from trainer.publishing.golden import (
    Row,
    as_sent,
    columns_of_rows,
    drawn_rows,
    fallback_cases,
    hard_cases,
    spare_rows,
)
from trainer.publishing.id_coverage import missed_tables, reached, rows_holding
from trainer.publishing.lookup_half import LiveRows
from trainer.publishing.passthrough import passthrough_inputs

REQUESTS_AT_MOST = 1024
# Rows taken from each pool; more would only take longer.
POOL_ROWS = 2048
_CASES_AT_MOST = 192
_REMOVED_ROWS = 64
_PLAIN_ROWS = 32
_STRIDE = 13

Pool = Mapping[str, Column]
_T = TypeVar("_T")


@dataclass(frozen=True)
class DeltaRequests:
    """Golden requests of a delta, as raw columns."""

    columns: dict[str, Column]
    rows: int
    #: Requests that hold an id that the delta changed.
    reaching: int
    #: Changed ids that they hold.
    ids_reached: int


def delta_requests(
    engine: FeatureEngine,
    pools: Sequence[Pool],
    changed: Sequence[DeltaTable],
    tables: Mapping[str, LiveRows],
    count: int,
    spare: Callable[[], Pool],
) -> DeltaRequests:
    """Makes at least `count` raw rows.

    pools: raw rows by input, those last trained on first. spare: returns rows that reach every table, for tables that
    nothing else reaches; only called then. When no known raw row leads to any changed row, none reaches one; `reaching`
    is then 0.
    """
    source = _Source(engine, [_first_rows(pool) for pool in pools], changed)
    reachable = source.reachable
    bases = [source.row(place, _PLAIN_ROWS) for place in range(_PLAIN_ROWS)]
    others = _evenly(hard_cases(bases, source.inputs, engine.spec, copies=1), _CASES_AT_MOST)
    others += _evenly(fallback_cases(bases, source.inputs, engine.spec, copies=1), _CASES_AT_MOST)
    others += source.removed_rows()
    others += drawn_rows(source.values, _PLAIN_ROWS)
    limit = max(REQUESTS_AT_MOST, count)
    wanted = max(source.needed if reachable else 0, len(others), count - len(others))
    wanted = min(wanted, limit - len(others))
    rows = [source.row(place, wanted) for place in range(wanted)] + others
    columns = columns_of_rows(source.inputs, rows, engine.spec)
    features = engine.run(columns, len(rows))
    if missed := missed_tables(features, engine, tables):
        extra = spare_rows(engine, spare(), missed)
        rows += extra + [source.row(wanted + place, wanted) for place in range(len(extra))]
        columns = columns_of_rows(source.inputs, rows, engine.spec)
        features = engine.run(columns, len(rows))
    reaching, ids_reached = reached(features, engine, changed)
    return DeltaRequests(columns, len(rows), int(reaching.sum()), ids_reached)


class _Source:
    """Makes rows number 0, 1, ... of raw values, each reaching changed rows where that is possible."""

    def __init__(self, engine: FeatureEngine, pools: Sequence[Pool], changed: Sequence[DeltaTable]) -> None:
        self.inputs = [as_sent(entry, pools) for entry in engine.spec.inputs]
        # Each input has one value for each row of the pool; a pool's input of one row stands for all of them.
        self.values = _pool_values(self.inputs, pools)
        batch = concat_batches([engine.run(pool, _rows_of(pool)) for pool in pools])
        self._pool = batch.batch
        self._places = passthrough_inputs(engine.spec, self.inputs)
        self._changed = [table for table in changed if len(table.ids) and table.name in self._places]
        self._removed = [table for table in changed if len(table.removed)]
        by_features = [
            rows_holding(batch, engine, table.name, table.ids)
            for table in changed
            if len(table.ids) and table.name not in self._places
        ]
        self._picks = np.unique(np.concatenate([np.empty(0, np.int64), *by_features]))
        self._picks = np.array(_evenly(self._picks.tolist(), REQUESTS_AT_MOST // 2), dtype=np.int64)
        natural, _ = reached(batch, engine, changed)
        self._natural = np.flatnonzero(natural)
        self._removed_picks = np.unique(
            np.concatenate(
                [
                    np.empty(0, np.int64),
                    *(rows_holding(batch, engine, table.name, table.removed) for table in self._removed),
                ]
            )
        )
        capacities = [self._capacity(table.name) for table in self._changed]
        needed = [-(-len(table.ids) // size) for table, size in zip(self._changed, capacities, strict=True)]
        #: The number of rows it takes to reach every changed id that can be reached.
        self.needed = max([len(self._picks), *needed])

    @property
    def reachable(self) -> bool:
        """True if any changed row can be reached."""
        return bool(self._changed) or len(self._natural) > 0

    def row(self, place: int, rows: int) -> Row:
        """Returns row `place` of `rows`, a new dict."""
        row = self._base(place)
        for table in self._changed:
            self._fill(row, table.name, table.ids, place, rows)
        return row

    def removed_rows(self) -> list[Row]:
        """Rows that hold ids which the delta removes."""
        rows = [self._pooled(place) for place in _evenly(self._removed_picks.tolist(), _REMOVED_ROWS)]
        carried = [table for table in self._removed if table.name in self._places]
        needed = [-(-len(table.removed) // self._capacity(table.name)) for table in carried]
        total = min(max(needed, default=0), _REMOVED_ROWS)
        for place in range(total):
            row = self.row(place, total)
            for table in carried:
                self._fill(row, table.name, table.removed, place, total)
            rows.append(row)
        return rows

    def _base(self, place: int) -> Row:
        if place < len(self._picks):
            return self._pooled(int(self._picks[place]))
        if not self._changed and len(self._natural):
            return self._pooled(int(self._natural[place % len(self._natural)]))
        return self._pooled(place * _STRIDE % self._pool)

    def _fill(self, row: Row, table: str, ids: np.ndarray, place: int, rows: int) -> None:
        """Puts the ids of row `place` of `rows` into `row`: ids are spread over the rows, then start again."""
        places, capacity = self._places[table], self._capacity(table)
        # One id for each place; bags get several ids only where the ids would not fit otherwise.
        full = len(ids) > rows * len(places)
        fitting = min(len(ids), rows * capacity)
        first = place * (capacity if full else len(places))
        for each in places:
            size = min(each.ids, len(ids), each.ids if full else 1 + place % 3)
            numbers = [(first + step) % fitting * len(ids) // fitting for step in range(size)]
            each.put(row, [int(ids[number]) for number in numbers])
            first += each.ids if full else 1

    def _capacity(self, table: str) -> int:
        return sum(each.ids for each in self._places[table])

    def _pooled(self, place: int) -> Row:
        return {name: values[place] for name, values in self.values.items()}


def _pool_values(inputs: Sequence[InputSpec], pools: Sequence[Pool]) -> dict[str, list[object]]:
    values: dict[str, list[object]] = {entry.name: [] for entry in inputs}
    for pool in pools:
        rows = _rows_of(pool)
        for entry in inputs:
            found = column_rows(pool[entry.name])
            values[entry.name] += found if len(found) == rows else found * rows
    return values


def _first_rows(pool: Pool) -> Pool:
    rows = min(_rows_of(pool), POOL_ROWS)
    return {name: column.slice(0, rows) if column.rows > rows else column for name, column in pool.items()}


def _rows_of(pool: Pool) -> int:
    return max(column.rows for column in pool.values())


def _evenly(values: Sequence[_T], count: int) -> list[_T]:
    """Returns at most `count` of the values, spread over all of them."""
    if len(values) <= count:
        return list(values)
    return [values[place * len(values) // count] for place in range(count)]
