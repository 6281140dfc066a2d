"""Runs a cache of several tables beside dictionaries, through every verb, resizes and marks."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from storage._table import Cache, CacheTable
from tests.support.examples import examples

DIM = 3
TABLES = 3
ids_of = st.lists(st.integers(-20, 40), min_size=1, max_size=30, unique=True).map(lambda v: np.array(v, np.int64))
tables = st.integers(0, TABLES - 1)


class CacheMachine(RuleBasedStateMachine):
    """A row that is found is the last one written; a row that is not found was erased, evicted or never admitted."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(4 * DIM, 60, TABLES)
        self.tables = [CacheTable(self.cache, table, DIM) for table in range(TABLES)]
        self.written: list[dict[int, float]] = [{} for _ in range(TABLES)]
        self.marked: list[set[int] | None] = [None] * TABLES
        self.generation = 0.0

    def rows(self, table: int, ids: np.ndarray) -> np.ndarray:
        self.generation += 1
        columns = (ids.astype(np.float32), np.full(len(ids), table), np.full(len(ids), self.generation))
        return np.stack(columns, axis=1).astype(np.float32)

    def held(self, table: int) -> dict[int, float]:
        """Returns the rows of a table, after checking that each is the latest of its id."""
        ids = np.arange(-20, 41)
        out = np.empty((len(ids), DIM), np.float32)
        found = np.empty(len(ids), np.uint8)
        self.tables[table].find(ids, out, found)
        held = {}
        for id_, row, there in zip(ids.tolist(), out, found, strict=True):
            if there:
                assert tuple(row) == (id_, table, self.written[table][id_])
                held[id_] = float(row[2])
            else:
                assert not row.any()
        return held

    def settle(self) -> None:
        """Forgets evicted rows in the model, too; a table that reports to be complete must not have evicted any."""
        for table in range(TABLES):
            held = self.held(table)
            marked = self.marked[table]
            if marked is not None and self.cache.is_complete(table):
                assert marked <= held.keys()
            self.written[table] = held

    @rule(table=tables, ids=ids_of)
    def insert(self, table: int, ids: np.ndarray) -> None:
        rows = self.rows(table, ids)
        room = self.cache.capacity_rows - self.cache.size()
        if self.cache.capacity_rows == 0:
            return
        self.tables[table].insert_or_assign(ids, rows)
        self.written[table].update(dict.fromkeys(ids.tolist(), self.generation))
        if room >= len(ids):
            assert set(ids.tolist()) <= self.held(table).keys()
        self.settle()

    @rule(table=tables, ids=ids_of)
    def offer(self, table: int, ids: np.ndarray) -> None:
        before = set(self.written[table])
        admitted = self.tables[table].insert_and_evict(ids, self.rows(table, ids))
        fresh = [i for i in ids.tolist() if i not in before]
        assert 0 <= admitted <= len(ids)
        self.written[table].update(dict.fromkeys(fresh, self.generation))
        # A row may be evicted and offered again within one call: either generation is valid then.
        for id_, value in self.latest(table).items():
            if id_ in ids.tolist() and id_ in before:
                assert value in (self.written[table][id_], self.generation)
                self.written[table][id_] = value
        self.settle()

    def latest(self, table: int) -> dict[int, float]:
        ids = np.arange(-20, 41)
        out = np.empty((len(ids), DIM), np.float32)
        found = np.empty(len(ids), np.uint8)
        self.tables[table].find(ids, out, found)
        return {int(i): float(row[2]) for i, row, there in zip(ids, out, found, strict=True) if there}

    @rule(table=tables, ids=ids_of)
    def assign(self, table: int, ids: np.ndarray) -> None:
        there = [i for i in ids.tolist() if i in self.written[table]]
        assert self.tables[table].assign(ids, self.rows(table, ids)) == len(there)
        self.written[table].update(dict.fromkeys(there, self.generation))
        assert self.held(table) == self.written[table]

    @rule(table=tables, ids=ids_of)
    def erase(self, table: int, ids: np.ndarray) -> None:
        there = [i for i in ids.tolist() if i in self.written[table]]
        assert self.tables[table].erase(ids) == len(there)
        for id_ in there:
            del self.written[table][id_]
        marked = self.marked[table]
        if marked is not None:
            self.marked[table] = marked - set(ids.tolist())
        assert self.held(table) == self.written[table]

    @rule(capacity=st.integers(0, 120))
    def resize(self, capacity: int) -> None:
        before = self.cache.size()
        self.cache.resize(capacity)
        assert self.cache.size() <= capacity
        if capacity >= before:
            assert self.cache.size() == before
        self.settle()

    @rule(table=tables)
    def mark(self, table: int) -> None:
        self.cache.mark_complete(table)
        self.marked[table] = set(self.written[table])

    @rule(table=tables, limit=st.integers(1, 20))
    def export(self, table: int, limit: int) -> None:
        seen: dict[int, float] = {}
        cursor = 0
        while cursor >= 0:
            cursor, ids, rows, _ = self.tables[table].export_batch(cursor, limit)
            assert not seen.keys() & set(ids.tolist())
            seen.update(zip(ids.tolist(), rows[:, 2].tolist(), strict=True))
        assert seen == self.written[table]

    @rule(limit=st.integers(0, 100))
    def hot(self, limit: int) -> None:
        of, ids, counts = self.cache.hot_ids(limit)
        assert len(of) == min(limit, self.cache.size())
        assert (np.diff(counts.astype(int)) <= 0).all()
        owners = list(zip(of.tolist(), ids.tolist(), strict=True))
        assert len(set(owners)) == len(owners)
        assert all(id_ in self.written[table] for table, id_ in owners)

    @invariant()
    def sound(self) -> None:
        self.cache.check_integrity()
        assert [self.cache.rows_of(table) for table in range(TABLES)] == [len(rows) for rows in self.written]
        assert self.cache.size() == sum(len(rows) for rows in self.written)


TestCacheMachine: Any = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
