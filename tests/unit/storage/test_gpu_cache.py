"""Tests the host's side of a GPU's cache: sets of changes applied to a copy, and refusals that name the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from storage._table import GpuCache, GpuSet
from tests.support.examples import examples

ROW_BYTES = 16
BASE = 2
TABLES = 6  # The base, and two snapshots beside it.
ASK_HOST = 0xFFFFFFFF
IDS = np.arange(4, dtype=np.int64)
ROWS = np.arange(4 * ROW_BYTES, dtype=np.uint8).reshape(4, ROW_BYTES)

some_ids = st.lists(st.integers(-20, 40), min_size=1, max_size=30, unique=True).map(lambda v: np.array(v, np.int64))
any_table = st.integers(0, TABLES - 1)
base_table = st.integers(0, BASE - 1)
ALL_IDS = np.arange(-20, 41, dtype=np.int64)


class Gpu:
    """Copy of a GPU's memory, to which the lists of publish.cuh are applied, a whole set at a time."""

    def __init__(self, cache: GpuCache) -> None:
        self.words = np.zeros(cache.bucket_count * 8, np.int64)
        self.slab = np.zeros((cache.slots + 1, cache.row_bytes), np.uint8)

    def put(self, changes: GpuSet) -> None:
        for entries in (changes.rows, changes.emptied, changes.ids, changes.words):
            assert entries.dtype == np.int64
            assert entries.shape[1] == 2
            assert len(np.unique(entries[:, 0])) == len(entries)
        assert changes.staged.shape == (len(changes.rows), self.slab.shape[1])
        self.slab[changes.rows[:, 0]] = changes.staged[changes.rows[:, 1]]
        half = len(changes.rows) // 2
        for start, count in ((0, half), (half, len(changes.rows) - half)):
            listed, rows = np.full((count, 2), -1, np.int64), np.full((count, ROW_BYTES + 8), 7, np.uint8)
            changes.put_rows(start, listed, rows)
            assert listed[:, 0].tolist() == changes.rows[start : start + count, 0].tolist()
            assert listed[:, 1].tolist() == list(range(count))
            np.testing.assert_array_equal(rows[:, :ROW_BYTES], self.slab[listed[:, 0]])
            assert not rows[:, ROW_BYTES:].any()
        for entries in (changes.emptied, changes.ids, changes.words):
            self.words[entries[:, 0]] = entries[:, 1]

    def owners(self) -> dict[tuple[int, int], int]:
        """Returns slots by table and id."""
        buckets = self.words.reshape(-1, 2, 4)
        ids, words = buckets[:, 0].reshape(-1), buckets[:, 1].reshape(-1)
        slots, tables = words & ASK_HOST, words >> 32 & 0xFFFF
        held = slots != 0
        keys = zip(tables[held].tolist(), ids[held].tolist(), strict=True)
        return dict(zip(keys, slots[held].tolist(), strict=True))


class GpuCacheMachine(RuleBasedStateMachine):
    """Between sets, the GPU has exactly the rows that were last written to the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = GpuCache(ROW_BYTES, 60, TABLES)
        self.gpu = Gpu(self.cache)
        self.written: dict[tuple[int, int], bytes] = {}
        self.taken: GpuSet | None = None
        self.number = 0

    def rows(self, table: int, ids: np.ndarray) -> np.ndarray:
        self.number += 1
        columns = (ids, np.full(len(ids), table << 32 | self.number))
        return np.stack(columns, axis=1).astype(np.int64).view(np.uint8)

    def slots(self, table: int) -> dict[int, int]:
        found = self.cache.find(table, ALL_IDS)
        return {int(i): int(slot) for i, slot in zip(ALL_IDS, found, strict=True) if slot}

    def wrote(self, table: int, ids: np.ndarray, rows: np.ndarray) -> None:
        for id_, row in zip(ids.tolist(), rows, strict=True):
            self.written[table, id_] = row.tobytes()

    @rule(table=any_table, ids=some_ids)
    def insert(self, table: int, ids: np.ndarray) -> None:
        rows = self.rows(table, ids)
        inside = self.cache.insert(table, ids, rows, None, pinned=table >= BASE)
        slots = self.slots(table)
        for id_, there in zip(ids.tolist(), inside.tolist(), strict=True):
            assert there == (slots.get(id_, ASK_HOST) != ASK_HOST)
        self.wrote(table, ids, rows)

    @rule(table=st.integers(BASE, TABLES - 1), ids=some_ids, padding=st.sampled_from([0, 8]))
    def insert_absent(self, table: int, ids: np.ndarray, padding: int) -> None:
        slots = self.slots(table)
        ids = np.array([i for i in ids.tolist() if i not in slots], np.int64)
        rows = self.rows(table, ids)
        padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=1)
        inside = self.cache.insert_absent(table, ids, padded)
        slots = self.slots(table)
        assert inside.tolist() == [i in slots for i in ids.tolist()]
        self.wrote(table, ids, rows)

    @rule(table=base_table, ids=some_ids)
    def offer(self, table: int, ids: np.ndarray) -> None:
        before = self.slots(table)
        rows = self.rows(table, ids)
        admitted = self.cache.offer(table, ids, rows, np.full(len(ids), 3, np.uint8))
        fresh = np.array([i not in before for i in ids.tolist()])
        assert 0 <= admitted <= len(ids)
        after = self.slots(table)
        # A row that was there may have been evicted by another one of this call, and inserted again.
        fresh |= np.array([before.get(i) != after.get(i) for i in ids.tolist()])
        self.wrote(table, ids[fresh], rows[fresh])

    @rule(table=base_table, ids=some_ids)
    def ask(self, table: int, ids: np.ndarray) -> None:
        admits = self.cache.ask(table, ids)
        assert admits.dtype == np.bool_
        slots = self.slots(table)
        assert not any(there and id_ in slots for id_, there in zip(ids.tolist(), admits.tolist(), strict=True))

    @rule(table=any_table, ids=some_ids)
    def assign(self, table: int, ids: np.ndarray) -> None:
        there = [i for i in ids.tolist() if self.slots(table).get(i, ASK_HOST) != ASK_HOST]
        rows = self.rows(table, ids)
        room = self.cache.free_slots >= len(ids) and self.cache.free() >= len(ids)
        assigned = self.cache.assign(table, ids, rows)
        assert assigned == len(there) if room else assigned <= len(there)
        self.wrote(table, ids, rows)

    @rule(table=st.integers(BASE, TABLES - 1), ids=some_ids)
    def ask_host(self, table: int, ids: np.ndarray) -> None:
        inside = self.cache.insert_ask_host(table, ids)
        slots = self.slots(table)
        for id_, there in zip(ids.tolist(), inside.tolist(), strict=True):
            assert (slots.get(id_) == ASK_HOST) == there

    @rule(source=st.integers(BASE, TABLES - 1), ids=some_ids)
    def adopt(self, source: int, ids: np.ndarray) -> None:
        target = source % BASE
        of, to = self.slots(source), self.slots(target)
        self.cache.adopt(source, target, ids)
        after = self.slots(target)
        for id_ in ids.tolist():
            if id_ not in of or (id_ not in to and (of[id_] == ASK_HOST or id_ not in after)):
                assert after.get(id_) == to.get(id_)
            elif of[id_] == ASK_HOST:
                assert id_ not in after
            else:
                assert after[id_] == of[id_]
                self.written[target, id_] = self.written[source, id_]

    @rule(rows=st.integers(0, 60))
    def reserve(self, rows: int) -> None:
        self.cache.reserve(rows)
        assert self.cache.reserved == min(rows, self.cache.capacity_rows)
        assert self.cache.free() <= self.cache.capacity_rows - self.cache.reserved

    @rule(table=any_table, ids=some_ids)
    def erase(self, table: int, ids: np.ndarray) -> None:
        there = self.slots(table).keys() & set(ids.tolist())
        assert self.cache.erase(table, ids) == len(there)
        assert not self.slots(table).keys() & there

    @rule(table=any_table)
    def erase_table(self, table: int) -> None:
        there = len(self.slots(table))
        assert self.cache.erase_table(table) == there
        assert not self.slots(table)

    @rule(number=st.integers(0, BASE - 1), ids=some_ids)
    def contains(self, number: int, ids: np.ndarray) -> None:
        held = set().union(*(self.slots(table) for table in range(number, TABLES, BASE)))
        assert self.cache.contains_any(number, BASE, ids).tolist() == [i in held for i in ids.tolist()]

    @precondition(lambda self: self.taken is None)
    @rule()
    def take(self) -> None:
        self.taken = self.cache.take_set()
        assert self.cache.changed_rows == 0
        self.then = {(table, i): slot for table in range(TABLES) for i, slot in self.slots(table).items()}
        self.rows_then = {owner: self.written[owner] for owner, slot in self.then.items() if slot != ASK_HOST}

    @precondition(lambda self: self.taken is not None)
    @rule()
    def complete(self) -> None:
        assert self.taken is not None
        self.gpu.put(self.taken)
        self.cache.complete_set()
        self.taken = None
        assert self.gpu.owners() == self.then
        for owner, row in self.rows_then.items():
            assert self.gpu.slab[self.then[owner]].tobytes() == row

    @rule(marks=st.integers(0, 255))
    def uses(self, marks: int) -> None:
        self.cache.note_uses((np.arange(self.cache.slots + 1) % 7 == marks % 7).astype(np.uint8), 8)
        self.cache.pass_lookups(marks, marks // 2)

    @rule(limit=st.integers(0, 100))
    def hot(self, limit: int) -> None:
        tables, ids, counts = self.cache.hot_ids(limit, BASE)
        assert (np.diff(counts.astype(int)) <= 0).all()
        rows = {(t, i) for t in range(BASE) for i, slot in self.slots(t).items() if slot != ASK_HOST}
        owners = list(zip(tables.tolist(), ids.tolist(), strict=True))
        assert len(set(owners)) == len(owners) == min(limit, len(rows))
        assert set(owners) <= rows

    @invariant()
    def sound(self) -> None:
        self.cache.check_integrity()
        assert self.cache.buckets().tobytes() == self.gpu.words.tobytes()
        assert self.cache.size() == sum(self.cache.rows_of(table) for table in range(TABLES))
        assert self.cache.free() <= self.cache.free_slots


TestGpuCacheMachine: Any = GpuCacheMachine.TestCase
TestGpuCacheMachine.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0, 8, 1), "row_bytes"),
        ((6, 8, 1), "row_bytes"),
        ((16, 0, 1), "capacity_rows"),
        ((16, 1 << 31, 1), "capacity_rows"),
        ((16, 8, 0), "tables"),
        ((16, 8, 65537), "tables"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(arguments: tuple[int, int, int], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        GpuCache(*arguments)


def test_wrong_arguments_are_refused_by_name() -> None:
    cache = GpuCache(ROW_BYTES, 8, 2)
    with pytest.raises(ValueError, match="table"):
        cache.find(2, IDS)
    with pytest.raises(ValueError, match="source"):
        cache.adopt(2, 0, IDS)
    with pytest.raises(ValueError, match="target"):
        cache.adopt(0, 0, IDS)
    with pytest.raises(TypeError, match="ids"):
        cache.insert(0, IDS.astype(np.int32), ROWS)
    with pytest.raises(ValueError, match="rows"):
        cache.insert(0, IDS, ROWS[:2])
    for wrong in (ROWS[:2], ROWS[:, :8].copy()):
        with pytest.raises(ValueError, match="rows"):
            cache.insert_absent(0, IDS, wrong)
    for threads in (0, 65):
        with pytest.raises(ValueError, match="threads"):
            cache.insert_absent(0, IDS, ROWS.copy(), threads)
        with pytest.raises(ValueError, match="threads"):
            cache.find(0, IDS, threads)
    with pytest.raises(ValueError, match="freq"):
        cache.offer(0, IDS, ROWS, np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match="marks"):
        cache.note_uses(np.zeros(cache.slots, np.uint8), 8)
    with pytest.raises(ValueError, match="part"):
        cache.note_uses(np.zeros(cache.slots + 1, np.uint8), 8, 2, 3, 3)
    with pytest.raises(ValueError, match="parts"):
        GpuCache.parts_of(0, IDS, 0)
    with pytest.raises(ValueError, match="table"):
        cache.use(2, IDS)
    for base_tables in (0, 3):
        with pytest.raises(ValueError, match="base_tables"):
            cache.hot_ids(1, base_tables)
        with pytest.raises(ValueError, match="base_tables"):
            cache.contains_any(0, base_tables, IDS)
    assert cache.size() == 0


def test_uses_of_other_parts_are_reported_one_by_one() -> None:
    cache = GpuCache(ROW_BYTES, 600, 6)
    ids = np.arange(100)
    for table in (1, 3):  # Table 3 is table 1 of a difference.
        assert cache.insert(table, ids, np.zeros((100, ROW_BYTES), np.uint8), np.full(100, 2, np.uint8)).all()
    own = GpuCache.parts_of(1, ids, 2) == 1

    def counts() -> np.ndarray:
        tables, found, uses = cache.hot_ids(600, 2)
        assert (tables == 1).all()
        return uses[np.argsort(found)]

    before = counts()
    cache.note_uses(np.ones(cache.slots + 1, np.uint8), 8, 2, 2, 1)
    after = counts()
    assert (after[own] > before[own]).all()
    assert (after[~own] == before[~own]).all()
    cache.use(1, np.repeat(ids[~own], 5))
    cache.use(1, np.array([1000, 1001]))  # These ids are not in the cache.
    assert (counts()[~own] > after[~own]).all()
    assert (counts()[own] == after[own]).all()
    cache.check_integrity()


def test_one_set_is_under_way_at_a_time() -> None:
    cache = GpuCache(ROW_BYTES, 8, 2)
    with pytest.raises(RuntimeError, match="no set"):
        cache.complete_set()
    assert cache.insert(0, IDS, ROWS).all()
    changes = cache.take_set()
    assert len(changes.rows) == len(changes.ids) == len(changes.words) == 4
    np.testing.assert_array_equal(changes.staged[np.argsort(changes.rows[:, 0])], ROWS)
    with pytest.raises(RuntimeError, match="not complete"):
        cache.take_set()
    cache.complete_set()
    del cache
    assert changes.staged.sum() == ROWS.sum()


def test_a_set_keeps_the_rows_that_it_was_lent() -> None:
    cache = GpuCache(ROW_BYTES, 8, 2)
    rows = ROWS.copy()
    assert cache.insert_absent(1, IDS, rows).all()
    changes = cache.take_set()
    assert np.shares_memory(changes.staged, rows)
    del rows, cache
    np.testing.assert_array_equal(changes.staged[np.argsort(changes.rows[:, 0])], ROWS)
    listed, space = np.empty((3, 2), np.int64), np.empty((3, ROW_BYTES), np.uint8)
    with pytest.raises(ValueError, match="rows"):
        changes.put_rows(2, listed, space)
    with pytest.raises(ValueError, match="entries"):
        changes.put_rows(0, listed[:2], space)
    with pytest.raises(ValueError, match="rows"):
        changes.put_rows(0, listed, space[:, :8].copy())


def test_sizes() -> None:
    cache = GpuCache(ROW_BYTES, 10_000, 3)
    assert (cache.row_bytes, cache.capacity_rows, cache.tables) == (ROW_BYTES, 10_000, 3)
    assert cache.slots == 10_300
    assert cache.free() == 10_000
    assert cache.free_slots == 10_300
    assert cache.buckets().shape == (cache.bucket_count * 64,)
    assert cache.memory_bytes() <= GpuCache.bytes_of(10_000)
    assert cache.stats() == dict.fromkeys(("inserted", "admitted", "rejected", "evicted", "assigned", "erased"), 0)
