"""The native table beside a dict, driven by hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from storage._table import CapacityExceeded, Table
from tests.support.examples import examples

DIM, EXTRA, CAPACITY = 3, 2, 24
EDGES = [-1, 0, 1, 2**63 - 1, -(2**63), 2**62, -(2**62)]
ids_lists = st.lists(st.sampled_from(EDGES) | st.integers(-40, 40), max_size=12)


def rows_for(ids: list[int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((len(ids), DIM + EXTRA)).astype(np.float32)


class TableMachine(RuleBasedStateMachine):
    capacity = 0

    def __init__(self) -> None:
        super().__init__()
        self.table = Table(DIM, extra=EXTRA, capacity_rows=self.capacity)
        self.model: dict[int, np.ndarray] = {}

    @rule(ids=ids_lists, seed=st.integers(0, 2**32 - 1))
    def insert_or_assign(self, ids: list[int], seed: int) -> None:
        rows = rows_for(ids, seed)
        refused = False
        for id_, row in zip(ids, rows, strict=True):
            if self.capacity and id_ not in self.model and len(self.model) == self.capacity:
                refused = True
                break
            self.model[id_] = row
        try:
            self.table.insert_or_assign(np.array(ids, np.int64), rows)
            assert not refused
        except CapacityExceeded:
            assert refused

    @rule(ids=ids_lists, seed=st.integers(0, 2**32 - 1))
    def assign(self, ids: list[int], seed: int) -> None:
        rows = rows_for(ids, seed)
        assert self.table.assign(np.array(ids, np.int64), rows) == sum(id_ in self.model for id_ in ids)
        for id_, row in zip(ids, rows, strict=True):
            if id_ in self.model:
                self.model[id_] = row

    @rule(ids=ids_lists)
    def erase(self, ids: list[int]) -> None:
        assert self.table.erase(np.array(ids, np.int64)) == len(set(ids) & self.model.keys())
        for id_ in ids:
            self.model.pop(id_, None)

    @rule(ids=ids_lists, seed=st.integers(0, 2**32 - 1))
    def insert_and_evict(self, ids: list[int], seed: int) -> None:
        rows = rows_for(ids, seed)
        before = dict(self.model)
        admitted = self.table.insert_and_evict(np.array(ids, np.int64), rows)
        now = self.exported()
        for id_, row in now.items():
            offered = [r for i, r in zip(ids, rows, strict=True) if i == id_]
            assert (id_ in before and np.array_equal(row, before[id_])) or any(np.array_equal(row, r) for r in offered)
        assert admitted >= len(now.keys() - before.keys())
        if not self.capacity or len(before.keys() | set(ids)) <= self.capacity:
            assert now.keys() == before.keys() | set(ids)
            assert admitted == len(set(ids) - before.keys())
        self.model = now

    @rule(ids=ids_lists)
    def find(self, ids: list[int]) -> None:
        out, found = np.full((len(ids), DIM), 7, np.float32), np.full(len(ids), 7, np.uint8)
        hits = self.table.find(np.array(ids, np.int64), out, found)
        assert found.tolist() == [int(id_ in self.model) for id_ in ids]
        assert hits == found.sum()
        for id_, row in zip(ids, out, strict=True):
            assert np.array_equal(row, self.model[id_][:DIM] if id_ in self.model else np.zeros(DIM, np.float32))

    @rule(rows=st.integers(0, 200))
    def reserve(self, rows: int) -> None:
        self.table.reserve(rows)

    @rule(limit=st.integers(1, 30))
    def export(self, limit: int) -> None:
        now = self.exported(limit)
        assert now.keys() == self.model.keys()
        assert all(np.array_equal(row, self.model[id_]) for id_, row in now.items())

    @invariant()
    def sizes_agree(self) -> None:
        assert self.table.size() == len(self.model)
        self.table.check_integrity()

    def exported(self, limit: int = 1000) -> dict[int, np.ndarray]:
        every: dict[int, np.ndarray] = {}
        cursor = 0
        while cursor >= 0:
            cursor, ids, rows, freq = self.table.export_batch(cursor, limit)
            assert len(ids) == len(rows) == len(freq) <= limit
            for id_, row in zip(ids.tolist(), rows, strict=True):
                assert id_ not in every
                every[id_] = row
        return every


class CacheMachine(TableMachine):
    capacity = CAPACITY

    @precondition(lambda self: len(self.model) == CAPACITY)
    @rule()
    def a_full_cache_stays_within_its_capacity(self) -> None:
        ids = np.arange(1000, 1100, dtype=np.int64)
        self.table.insert_and_evict(ids, rows_for(ids.tolist(), 1))
        self.model = self.exported()
        assert len(self.model) == CAPACITY


TestGrowingTable = TableMachine.TestCase
TestGrowingTable.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestCachingTable = CacheMachine.TestCase
TestCachingTable.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def test_many_random_ids_are_exact_in_one_call() -> None:
    rng = np.random.default_rng(1)
    ids = np.unique(rng.integers(-(2**63), 2**63 - 1, 120_000))
    rng.shuffle(ids)
    inside, outside = ids[:60_000], ids[60_000:]
    rows = rng.standard_normal((len(inside), 8)).astype(np.float32)
    table = Table(8)
    table.insert_or_assign(inside, rows)
    asked = np.concatenate([outside, inside])
    out, found = np.empty((len(asked), 8), np.float32), np.empty(len(asked), np.uint8)
    assert table.find(asked, out, found) == len(inside)
    assert np.array_equal(out[len(outside) :], rows)
    assert not out[: len(outside)].any()
    assert not found[: len(outside)].any()


def test_use_counts_come_back_as_they_were_given() -> None:
    table = Table(1, capacity_rows=300)
    ids = np.arange(256, dtype=np.int64)
    table.insert_or_assign(ids, np.zeros((256, 1), np.float32), np.arange(256, dtype=np.uint8))
    _, exported, _, freq = table.export_batch(0, 1000)
    assert np.array_equal(np.sort(exported), ids)
    assert np.array_equal(freq, exported.astype(np.uint8))


def test_lookups_raise_the_use_counts_of_a_cache() -> None:
    table = Table(1, capacity_rows=101)
    table.insert_or_assign(np.arange(101), np.zeros((101, 1), np.float32), np.zeros(101, np.uint8))
    hot = np.arange(1, 101)
    out, found = np.empty((100, 1), np.float32), np.empty(100, np.uint8)
    for _ in range(2000):
        table.find(hot, out, found)
    _, ids, _, freq = table.export_batch(0, 101)
    codes = freq[np.argsort(ids)].astype(np.int64)
    assert codes[0] == 0
    counts = (16 + codes[1:] % 16) << (codes[1:] // 16 - 1)  # floating point with four bits of mantissa
    # A counter steps by 1/16 to 1/32 of its count, by chance: one is 300 off (standard deviation), 100 are by 33.
    assert 1800 <= counts.mean() <= 2200
