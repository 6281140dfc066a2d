"""Compares a training table with a part of its rows on SSD with one that has all in DRAM: they agree to the bit."""

from __future__ import annotations

import resource
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage._table import TrainingTable
from storage.errors import ConfigError, StoreError
from storage.tiers.training.budget import RowBudget
from storage.tiers.training.export import TieredTrainingTable
from storage.tiers.training.store import TrainingStore
from tests.support.examples import examples
from tests.support.training_tables import pooled, step_rows, training_table

F32 = np.float32
DIM = 3
EDGES = [-(2**63), -1, 0, 1, 2**63 - 1]
# A batch fits into the budget; all ids together do not.
IDS = st.lists(st.sampled_from(EDGES) | st.integers(-20, 60), min_size=1, max_size=6)
ROWS_IN_DRAM = 12


def options(admit_after: int, adagrad: bool) -> dict[str, Any]:
    return {"rule": "adagrad" if adagrad else "sgd", "admit_after": admit_after}


def tiered(
    folder: Path, admit_after: int = 1, adagrad: bool = True, *, rows: int = ROWS_IN_DRAM, name: str = "items"
) -> TieredTrainingTable:
    row_bytes = 4 * DIM * (2 if adagrad else 1) + 112
    native = training_table(DIM, **options(admit_after, adagrad), tiered=True)
    return TieredTrainingTable(name, 3, native, store=TrainingStore(folder), budget=RowBudget(rows * row_bytes))


def same(one: tuple[np.ndarray, ...], other: tuple[np.ndarray, ...]) -> bool:
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


class Beside(RuleBasedStateMachine):
    """Runs every verb on both tables, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())

    def teardown(self) -> None:
        if hasattr(self, "tiered"):
            self.tiered.store.close()
        shutil.rmtree(self.folder)

    @initialize(admit_after=st.integers(1, 3), adagrad=st.booleans())
    def begin(self, admit_after: int, adagrad: bool) -> None:
        self.kind = (admit_after, adagrad)
        self.plain = training_table(DIM, **options(admit_after, adagrad))
        self.tiered = tiered(self.folder, admit_after, adagrad)
        self.rng = np.random.default_rng(1)
        self.expect_rows = 0

    def tables(self) -> tuple[TrainingTable | TieredTrainingTable, ...]:
        return self.plain, self.tiered

    def both(self, verb: str, *arguments: object) -> None:
        one = getattr(self.plain, verb)(*arguments)
        other = getattr(self.tiered, verb)(*arguments)
        assert (one == other) if not isinstance(one, tuple) else same(one, other)

    def looked(self, ids: np.ndarray, train: bool) -> None:
        outs = [np.full((len(ids), DIM), np.nan, F32) for _ in range(2)]
        hits = [table.lookup(ids, out, train) for table, out in zip(self.tables(), outs, strict=True)]
        assert hits[0] == hits[1]
        assert outs[0].tobytes() == outs[1].tobytes()

    @rule(ids=IDS)
    def look(self, ids: list[int]) -> None:
        self.looked(np.array(ids), True)

    @rule(ids=IDS, more=IDS)
    def batch(self, ids: list[int], more: list[int]) -> None:
        """Trains a batch as the loop does: the next batch's rows are read meanwhile."""
        now, following = np.array(ids), np.array(more)
        self.tiered.hold(now)
        reading = threading.Thread(target=self.tiered.stage, args=(following,))
        reading.start()
        self.looked(now, True)
        self.stepped(now)
        reading.join()
        self.tiered.hold(following)
        self.looked(following, True)
        self.stepped(following)

    def stepped(self, ids: np.ndarray) -> None:
        grads = self.rng.standard_normal((len(ids), DIM)).astype(F32)
        rule = "adagrad" if self.kind[1] else "sgd"
        stepped = [step_rows(table, ids, grads, rule=rule) for table in self.tables()]
        assert stepped[0] == stepped[1]

    @rule(ids=IDS)
    def step(self, ids: list[int]) -> None:
        self.stepped(np.array(ids))

    @rule(ids=st.lists(st.sampled_from(EDGES) | st.integers(-30, 70), max_size=60))
    def evaluate(self, ids: list[int]) -> None:
        """Looks up without changing or moving rows, also for more ids than the budget holds."""
        before = self.tiered.native.size(), self.tiered.native.row_ids().tobytes(), self.tiered.rows_outside
        self.looked(np.array(ids, np.int64), False)
        assert before == (
            self.tiered.native.size(),
            self.tiered.native.row_ids().tobytes(),
            self.tiered.rows_outside,
        )

    @rule(ids=IDS, mode=st.integers(0, 1), train=st.booleans())
    def pool(self, ids: list[int], mode: int, train: bool) -> None:
        offsets = np.array([0, 0, len(ids) // 2, len(ids)])
        outs = [pooled(table, np.array(ids), offsets, mode, train=train) for table in self.tables()]
        assert outs[0].tobytes() == outs[1].tobytes()

    @rule(ids=IDS)
    def erase(self, ids: list[int]) -> None:
        self.both("erase", np.array(ids))

    @rule()
    def advance(self) -> None:
        self.both("advance")

    @rule(back=st.integers(0, 4))
    def expire(self, back: int) -> None:
        ids = self.plain.expired(max(0, self.plain.stamp - 1 - back))
        assert ids.tobytes() == self.tiered.expired(max(0, self.plain.stamp - 1 - back)).tobytes()
        self.both("erase", ids)

    @rule(back=st.integers(0, 3))
    def forget(self, back: int) -> None:
        self.both("forget_removed", max(0, self.plain.stamp - back))

    @precondition(lambda self: self.plain.size() > 0)
    @rule(since=st.integers(0, 20))
    def restart(self, since: int) -> None:
        """Restores new tables from a commit and an increment on it, which must equal the old ones."""
        old = self.plain.expired(since)
        new = self.plain.changed_since(since)
        parts = [(ids, *self.tiered.export_ids(ids)) for ids in (old, new)]
        waiting, removed = self.tiered.export_counts(), self.tiered.removed()
        stamp = self.plain.stamp
        self.tiered.store.close()
        plain, other = training_table(DIM, **options(*self.kind)), tiered(self.folder, *self.kind)
        for table in (plain, other):
            table.set_stamp(stamp)
            for part in parts:
                table.restore(*part)
            table.restore_counts(*waiting)
            table.restore_removed(*removed)
        self.plain, self.tiered = plain, other

    @rule(first=st.integers(2000, 2100), counts=st.lists(st.integers(0, 2), min_size=1, max_size=20))
    def counts_from_outside(self, first: int, counts: list[int]) -> None:
        self.both("restore_counts", np.arange(first, first + len(counts)), np.array(counts, np.uint32))

    @precondition(lambda self: self.plain.size() > 0)
    @rule(number=st.integers(0, 50))
    def rows_from_outside(self, number: int) -> None:
        """Inserts rows over existing rows, wherever those are, and new ones."""
        ids = np.ascontiguousarray(self.plain.export_rows()[0][number % 7 :: 5])
        rows, slots, counts, stamps, ticks = self.plain.export_ids(ids)
        fresh = np.arange(1000 + number, 1000 + number + len(ids))
        for chosen in (ids, fresh):
            self.both("restore", chosen, rows + F32(1), slots, counts, stamps, ticks)

    @invariant()
    def agrees(self) -> None:
        assert self.plain.stamp == self.tiered.stamp
        assert self.plain.size() == self.tiered.size()
        assert self.tiered.native.size() <= ROWS_IN_DRAM
        assert len(self.plain.export_counts()[0]) == self.tiered.waiting()
        assert same(self.plain.export_rows(), self.tiered.export_rows())
        assert same(self.plain.export_counts(), self.tiered.export_counts())
        assert same(self.plain.removed(), self.tiered.removed())
        stamp = self.plain.stamp
        for after in {0, stamp // 2, stamp - 1, stamp}:
            for verb in ("changed_since", "expired", "removed_since"):
                assert same((getattr(self.plain, verb)(after),), (getattr(self.tiered, verb)(after),)), verb
            if stamp - after <= 64:
                assert same(self.plain.waiting_since(after), self.tiered.waiting_since(after))


TestBeside = Beside.TestCase
# A store is made for each example, so finding a smaller one would take long.
TestBeside.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)


def test_what_is_forgotten_at_the_open_stamp_does_not_come_back_with_rows_that_move() -> None:
    """Rows that moved must not bring back what was forgotten.

    Looking for it on the disk brought ids back, which evicted others: among them those that should have been forgotten.
    """
    least, most = -(2**63), 2**63 - 1
    state: Any = Beside()
    state.begin(adagrad=True, admit_after=1)
    for call in (
        lambda: state.batch(ids=[51, 26], more=[60]),
        lambda: state.counts_from_outside(counts=[0, 1, 2, 1, 0, 1, 1], first=2014),
        lambda: state.erase(ids=[-1, least, 60, -1, 1, 0]),
        lambda: state.batch(ids=[0, 1], more=[33, 0, 31, -16, -18]),
        lambda: state.expire(back=3),
        lambda: state.restart(since=8),
        lambda: state.pool(ids=[13, -1, 0, -1, -1, 34], mode=0, train=True),
        lambda: state.erase(ids=[12, least, 26, -19, 12, most]),
        lambda: state.look(ids=[9, 1, 1, -1, 0, 56]),
        lambda: state.look(ids=[0]),
        lambda: state.restart(since=9),
        lambda: state.pool(ids=[0, 12], mode=1, train=True),
        lambda: state.forget(back=1),
        lambda: state.step(ids=[1, 0, 8, -1, 24, 0]),
        lambda: state.erase(ids=[1, 24, 34]),
        lambda: state.forget(back=0),
    ):
        call()
        state.agrees()
    state.teardown()


@pytest.fixture
def table(tmp_path: Path) -> TieredTrainingTable:
    return tiered(tmp_path / "rows", rows=100)


def look(table: TieredTrainingTable, ids: np.ndarray) -> np.ndarray:
    out = np.empty((len(ids), DIM), F32)
    table.lookup(ids, out, True)
    return out


def test_a_batch_that_the_budget_cannot_hold_is_refused_by_name(table: TieredTrainingTable) -> None:
    look(table, np.arange(100))
    with pytest.raises(ConfigError, match=r"table 'items' may take .* one batch has 101 ids") as refused:
        look(table, np.arange(500, 601))
    assert refused.value.field == "training.dram_bytes"
    assert table.size() == 100  # No row was lost.
    assert len(table.export_rows()[0]) == 100


def test_rows_that_are_used_stay_and_rows_that_are_not_leave(table: TieredTrainingTable) -> None:
    hot, rng = np.arange(40), np.random.default_rng(3)
    for step in range(60):
        table.hold(ids := np.concatenate([hot, 1000 + 20 * step + rng.integers(0, 20, 20)]))
        look(table, ids)
    assert np.isin(hot, table.native.row_ids()).all()
    assert table.traffic.fetched_late < 60


def test_a_row_that_was_only_read_ahead_leaves_without_a_write(table: TieredTrainingTable) -> None:
    look(table, np.arange(80))
    look(table, np.arange(100, 180))
    table.hold(np.arange(80))  # The rows are read, and not trained.
    brought = table.traffic.fetched_late
    table.hold(np.arange(300, 399))
    assert brought > 50
    assert table.traffic.written == 160
    assert table.traffic.left == 160 + brought


def test_what_was_read_ahead_is_not_used_when_it_is_old(table: TieredTrainingTable) -> None:
    """A row that comes, is trained and leaves between the read-ahead and the batch is read again."""
    reference = training_table(DIM, **options(1, True))
    ids, others = np.arange(10), np.arange(100, 195)
    for batch in (ids, others):
        look(table, batch)
        reference.lookup(batch, np.empty((len(batch), DIM), F32), True)
    table.stage(ids)
    for batch in (ids, others):
        for one in (table, reference):
            if batch is ids:
                step_rows(one, ids, np.ones((10, DIM), F32))
            else:
                one.lookup(batch, np.empty((len(batch), DIM), F32), True)
    assert not np.isin(ids, table.native.row_ids()).all()
    table.hold(ids)
    assert same(table.export_ids(ids), reference.export_ids(ids))
    assert table.traffic.fetched_late > 0


def test_what_leaves_when_a_batch_begins_was_read_ahead_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count that is in the store for a moment is read there, returns, grows, and leaves again for the batch."""
    table = tiered(tmp_path, admit_after=4)
    ids = np.arange(4, dtype=np.int64)
    look(table, ids)
    table._spill_bare()
    table.stage(ids)
    look(table, ids)
    monkeypatch.setattr(table, "_spill_bare_if_many", table._spill_bare)
    table.hold(ids)
    monkeypatch.undo()
    assert [part.tolist() for part in table.export_counts()] == [ids.tolist(), [2] * len(ids)]
    look(table, ids)
    look(table, ids)
    assert table.size() == len(ids)
    table.store.close()


def test_what_is_erased_while_it_is_read_ahead_does_not_come_back(
    table: TieredTrainingTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, erase = np.arange(10), table.store.erase
    first = look(table, ids)
    step_rows(table, ids, np.ones((10, DIM), F32))
    look(table, np.arange(100, 195))
    assert not np.isin(ids, table.native.row_ids()).any()

    def erase_as_somebody_reads(*arguments: Any) -> None:
        table.stage(ids)
        erase(*arguments)

    monkeypatch.setattr(table.store, "erase", erase_as_somebody_reads)
    assert table.erase(ids) == 10
    monkeypatch.undo()
    table.hold(ids)
    assert table.size() == 95
    assert look(table, ids).tobytes() == first.tobytes()  # The rows are like new ones.


def test_large_groups_of_rows_are_ingested_and_large_answers_are_files(tmp_path: Path) -> None:
    rows = 200_000
    table = tiered(tmp_path / "rows", rows=rows // 2)
    reference = training_table(DIM, **options(1, True))
    for start in range(0, rows, 50_000):
        ids = np.arange(start, start + 50_000) * 7919
        for one in (table, reference):
            one.lookup(ids, np.empty((len(ids), DIM), F32), True)
    for one in (table, reference):
        one.advance()
        one.lookup(np.arange(0, rows, 9) * 7919, np.empty((len(range(0, rows, 9)), DIM), F32), True)
    assert table.native.size() <= rows // 2
    assert same(table.export_rows(), reference.export_rows())
    assert table.changed_since(1).tolist() == reference.changed_since(1).tolist()


def test_memory_stays_within_the_budget_while_rows_come_and_go(tmp_path: Path) -> None:
    """Uses rows, ids that wait for a row, and ids that were erased; three times as many as fit."""
    table = tiered(tmp_path / "rows", admit_after=2, rows=20_000)
    rng = np.random.default_rng(2)
    beside = 300 << 10  # A table without rows takes this much.
    for step in range(120):
        ids = rng.integers(0, 60_000, 2000)
        table.hold(ids)
        look(table, ids)
        step_rows(table, ids, np.ones((2000, DIM), F32))
        assert table.memory_bytes() <= table.budget.dram_bytes + beside
        if step % 10 == 9:
            table.erase(rng.integers(0, 60_000, 500))
            table.advance()
    assert table.rows_outside > 10_000
    assert table.waiting_outside > 0


def test_a_full_disk_is_an_error_and_no_row_is_lost(table: TieredTrainingTable) -> None:
    """Limits the size of files, which has the effect of a full disk on RocksDB."""
    reference = training_table(DIM, **options(1, True))

    def train_until_it_is_full() -> None:
        for start in range(0, 200_000, 90):
            ids = np.arange(start, start + 90)
            look(table, ids)
            reference.lookup(ids, np.empty((90, DIM), F32), True)

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))
    try:
        with pytest.raises(StoreError, match=r"writing \d+ entries .*(File too large|No space left)"):
            train_until_it_is_full()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert table.rows_outside > 90
    assert same(table.export_rows(), reference.export_rows())


def test_a_store_goes_with_its_process_and_the_next_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    left = tmp_path / "rows-0000"
    left.mkdir()
    (left / "lock").touch()
    one, other = tiered(tmp_path), tiered(tmp_path)
    for table in (one, other):
        for start in (0, 100):
            look(table, np.arange(start, start + 10))
    folders = set(tmp_path.glob("rows-*"))
    assert len(folders) == 2
    assert left not in folders
    one.store.close()
    other.store.close()
    assert not list(tmp_path.glob("rows-*"))
