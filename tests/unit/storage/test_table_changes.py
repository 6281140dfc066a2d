"""Compares what changed after a stamp with a dict that remembers every change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from storage._table import TrainingTable
from tests.support.examples import examples
from tests.support.training_tables import step_rows, training_table

F32 = np.float32
IDS = st.lists(st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 5, 8, 13, 2**63 - 1]), min_size=1, max_size=8)


def make(admit_after: int) -> TrainingTable:
    return training_table(2, admit_after=admit_after)


class Tracking(RuleBasedStateMachine):
    """Runs the table beside its history: rows -> stamp, removed -> stamp, waiting -> count and stamp."""

    @initialize(admit_after=st.integers(1, 3))
    def begin(self, admit_after: int) -> None:
        self.admit_after = admit_after
        self.table = make(admit_after)
        self.stamp = 1
        self.rows: dict[int, int] = {}
        self.removed: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.waited: dict[int, int] = {}

    @rule(ids=IDS)
    def look(self, ids: list[int]) -> None:
        self.table.lookup(np.array(ids), np.empty((len(ids), 2), F32), True)
        for number in ids:
            if number not in self.rows:
                if self.admit_after > 1:
                    self.waiting[number] = self.waiting.get(number, 0) + 1
                    self.waited[number] = self.stamp
                    if self.waiting[number] < self.admit_after:
                        continue
                    del self.waiting[number]
                self.removed.pop(number, None)
            self.rows[number] = self.stamp

    @rule(ids=IDS)
    def step(self, ids: list[int]) -> None:
        step_rows(self.table, np.array(ids), np.ones((len(ids), 2), F32))
        self.rows.update({number: self.stamp for number in ids if number in self.rows})

    @rule(ids=IDS)
    def evaluate(self, ids: list[int]) -> None:
        self.table.lookup(np.array(ids), np.empty((len(ids), 2), F32), False)

    @rule(ids=IDS)
    def erase(self, ids: list[int]) -> None:
        gone = {number for number in ids if number in self.rows}
        assert self.table.erase(np.array(ids)) == len(gone)
        for number in set(ids):
            if self.waiting.pop(number, None) is not None:
                self.waited[number] = self.stamp
        for number in gone:
            del self.rows[number]
            self.removed[number] = self.stamp

    @rule()
    def advance(self) -> None:
        assert self.table.advance() == self.stamp
        self.stamp += 1

    @rule(back=st.integers(0, 3))
    def forget(self, back: int) -> None:
        upto = max(0, self.stamp - back)
        self.table.forget_removed(upto)
        self.removed = {number: stamp for number, stamp in self.removed.items() if stamp > upto}

    @rule(since=st.integers(0, 40))
    def restored(self, since: int) -> None:
        """Restores a copy from an older export and the changes since, which must equal the table."""
        copy = make(self.admit_after)
        copy.set_stamp(self.stamp)
        old = np.array(sorted(n for n, stamp in self.rows.items() if stamp <= since), np.int64)
        new = self.table.changed_since(since)
        for ids in (old, new):
            copy.restore(ids, *self.table.export_ids(ids))
        copy.restore_removed(*self.table.removed())
        copy.restore_counts(*self.table.export_counts())
        for mine, other in zip(
            map(np.asarray, self.table.export_rows()), map(np.asarray, copy.export_rows()), strict=True
        ):
            assert np.array_equal(mine, other)
        for after in (since, 0):
            assert np.array_equal(self.table.changed_since(after), copy.changed_since(after))
            assert np.array_equal(self.table.removed_since(after), copy.removed_since(after))

    @invariant()
    def agrees(self) -> None:
        assert self.table.stamp == self.stamp
        for after in {0, self.stamp // 2, self.stamp - 1, self.stamp}:
            changed = sorted(number for number, stamp in self.rows.items() if stamp > after)
            assert self.table.changed_since(after).tolist() == changed
            assert self.table.expired(after).tolist() == sorted(set(self.rows) - set(changed))
            removed = sorted(number for number, stamp in self.removed.items() if stamp > after)
            assert self.table.removed_since(after).tolist() == removed
            if self.stamp - after > 64:
                continue
            ids, counts = self.table.waiting_since(after)
            assert ids.tolist() == sorted(number for number, stamp in self.waited.items() if stamp > after)
            assert counts.tolist() == [self.waiting.get(number, 0) for number in ids.tolist()]
        ids, stamps = self.table.removed()
        assert dict(zip(ids.tolist(), stamps.tolist(), strict=True)) == self.removed


TestTracking = Tracking.TestCase
TestTracking.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_old_entries_are_dropped_and_none_is_lost() -> None:
    table = make(2)
    rng = np.random.default_rng(5)
    latest: dict[int, int] = {}
    for stamp in range(1, 200):
        ids = rng.integers(0, 600, 400)
        for _ in range(2):
            table.lookup(ids, np.empty((len(ids), 2), F32), True)
        latest.update(dict.fromkeys(ids.tolist(), stamp))
        table.advance()
    for after in (0, 100, 190, 198):
        assert table.changed_since(after).tolist() == sorted(n for n, stamp in latest.items() if stamp > after)
    assert table.memory_bytes() < 1 << 20  # 79,600 changes are remembered as 600.


def test_what_cannot_be_is_refused_by_name() -> None:
    table = make(1)
    table.lookup(np.array([4]), np.empty((1, 2), F32), True)
    with pytest.raises(ValueError, match="id 5 has no row"):
        table.export_ids(np.array([4, 5]))
    rows, slots, counts, stamps, ticks = table.export_ids(np.array([4]))
    with pytest.raises(ValueError, match="set_stamp first"):
        table.restore(np.array([4]), rows, slots, counts, stamps + np.uint32(9), ticks)
    table.set_stamp(9)
    with pytest.raises(ValueError, match="8 was used already"):
        table.set_stamp(8)
    table.set_stamp(900)
    with pytest.raises(ValueError, match="too old"):
        table.waiting_since(3)
