"""Compares a training table with a part of its rows on SSD with one that has all in DRAM: they agree to the bit."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage._table import (
    BatchLookup,
    RowBudget,
    RowGradients,
    TrainingTable,
    begin_tables,
    read_ahead,
    step_tables,
)
from storage.errors import ConfigError, StoreError
from storage.tiers.training.table import TieredTrainingTable
from tests.support.examples import examples
from tests.support.training_tables import pooled, step_rows, training_table

F32 = np.float32
DIM = 3
EDGES = [-(2**63), -1, 0, 1, 2**63 - 1]
# A batch fits into the budget; all ids together do not.
IDS = st.lists(st.sampled_from(EDGES) | st.integers(-20, 60), min_size=1, max_size=6)
ROWS_IN_DRAM = 12
ROW_OVERHEAD = 80


def options(admit_after: int, adagrad: bool) -> dict[str, Any]:
    return {"rule": "adagrad" if adagrad else "sgd", "admit_after": admit_after}


def tiered(
    folder: Path, admit_after: int = 1, adagrad: bool = True, *, rows: int = ROWS_IN_DRAM, name: str = "items"
) -> TieredTrainingTable:
    row_bytes = 4 * DIM * (2 if adagrad else 1) + ROW_OVERHEAD
    return TieredTrainingTable(
        name,
        DIM,
        budget=RowBudget(rows * row_bytes),
        folder=folder,
        optimizer="adagrad" if adagrad else "sgd",
        rows=("uniform", 0.5),
        initial_accumulator=0.1,
        seed=7,
        admit_after=admit_after,
    )


def in_dram(table: TieredTrainingTable) -> int:
    return table.tier_figures()["rows_in_dram"]


def outside(table: TieredTrainingTable) -> int:
    return table.tier_figures()["rows_outside"]


def same(one: tuple[np.ndarray, ...], other: tuple[np.ndarray, ...]) -> bool:
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


class Beside(RuleBasedStateMachine):
    """Runs every verb on both tables, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())

    def teardown(self) -> None:
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
        """Trains batches as the loop does."""
        for batch in (np.array(ids), np.array(more)):
            begin_tables([self.tiered])
            read_ahead([self.tiered], [np.array(more)])
            self.looked(batch, True)
            self.stepped(batch)

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
        before = self.tiered.row_ids().tobytes(), outside(self.tiered)
        self.looked(np.array(ids, np.int64), False)
        assert before == (self.tiered.row_ids().tobytes(), outside(self.tiered))

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
        assert in_dram(self.tiered) <= ROWS_IN_DRAM
        assert len(self.plain.export_counts()[0]) == self.tiered.waiting_size()
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
# A table is filled for each example, so finding a smaller one would take long.
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
        begin_tables([table])
        look(table, np.concatenate([hot, 1000 + 20 * step + rng.integers(0, 20, 20)]))
    assert np.isin(hot, table.row_ids()).all()
    assert table.tier_figures()["fetched"] < 60


def test_a_row_that_was_brought_and_not_changed_leaves_without_a_write(table: TieredTrainingTable) -> None:
    look(table, np.arange(80))
    look(table, np.arange(100, 180))
    RowGradients(table, np.arange(80), np.ones((80, DIM), F32))  # The rows are brought, and no step follows.
    brought = table.tier_figures()["fetched"]
    look(table, np.arange(300, 399))
    figures = table.tier_figures()
    assert brought > 50
    assert figures["written"] < 162
    assert figures["left"] == figures["written"] + brought


def test_gradients_reach_rows_that_left_since_they_were_read(table: TieredTrainingTable) -> None:
    """Rows leave for another batch between a lookup and its step; also those that were only read, for evaluation."""
    reference = training_table(DIM, **options(1, True))
    ids, offsets = np.arange(30), np.arange(31)
    for train in (True, False):
        waiting = []
        for one in (table, reference):
            one.lookup(np.arange(100, 190), np.empty((90, DIM), F32), True)
            lookup = BatchLookup([one], [(0, 0, 0)])
            out = np.empty((30, DIM), F32)
            lookup.run([ids], [offsets], [None], 30, out, [], train, 1)
            lookup.set_gradients(np.full((30, DIM), 0.5, F32), [], 1)
            waiting.append(lookup)
            one.lookup(np.arange(200, 290), np.empty((90, DIM), F32), True)
        assert not np.isin(ids, table.row_ids()).all()
        stepped = [
            step_tables([one], [[lookup.gradients(0)]], "adagrad", {"lr": 0.1, "eps": 1e-8}, 1)
            for one, lookup in zip((table, reference), waiting, strict=True)
        ]
        assert stepped == [30, 30]
        assert same(tuple(table.export_ids(ids)), tuple(reference.export_ids(ids)))


def test_large_tables_are_exported_in_order_from_files(tmp_path: Path) -> None:
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
    assert in_dram(table) <= rows // 2
    assert same(table.export_rows(), reference.export_rows())
    assert table.changed_since(1).tolist() == reference.changed_since(1).tolist()


def test_memory_stays_within_the_budget_while_rows_come_and_go(tmp_path: Path) -> None:
    """Uses rows, ids that wait for a row, and ids that were erased; three times as many as fit."""
    table = tiered(tmp_path / "rows", admit_after=2, rows=20_000)
    rng = np.random.default_rng(2)
    beside = 300 << 10  # A table without rows takes this much.
    waited = 0
    for step in range(120):
        ids = rng.integers(0, 60_000, 2000)
        begin_tables([table])
        look(table, ids)
        step_rows(table, ids, np.ones((2000, DIM), F32))
        assert table.memory_bytes() <= table.budget.dram_bytes + beside
        waited = max(waited, len(table.outside_bare(0, None, None)[0]))
        if step % 10 == 9:
            table.erase(rng.integers(0, 60_000, 500))
            table.advance()
    assert outside(table) > 10_000
    assert waited > 0


def test_a_full_disk_is_an_error_and_no_row_is_lost(table: TieredTrainingTable, tmp_path: Path) -> None:
    """Limits the size of files, which has the effect of a full disk."""
    reference = training_table(DIM, **options(1, True))

    def train_until_it_is_full() -> None:
        for start in range(0, 200_000, 90):
            ids = np.arange(start, start + 90)
            look(table, ids)
            reference.lookup(ids, np.empty((90, DIM), F32), True)

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512 << 10, hard))
    try:
        with pytest.raises(StoreError, match=rf"rows to a file in {tmp_path}.*files of this process may not grow"):
            train_until_it_is_full()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert outside(table) > 1000
    assert same(table.export_rows(), reference.export_rows())


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    table = tiered(tmp_path / "file" / "rows", rows=20)
    look(table, np.arange(20))
    with pytest.raises(StoreError, match=rf"folder {tmp_path}/file/rows"):
        look(table, np.arange(100, 120))
    assert table.size() == 20


def test_nothing_of_the_file_is_seen_in_its_folder(table: TieredTrainingTable, tmp_path: Path) -> None:
    for start in (0, 100):
        look(table, np.arange(start, start + 90))
    assert outside(table) > 0
    assert list((tmp_path / "rows").iterdir()) == []
    opened = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert any(str(tmp_path / "rows") in name and "deleted" in name for name in opened)


def test_a_table_is_attached_once_and_empty(table: TieredTrainingTable, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="attach: the table must be empty"):
        table.attach("items", RowBudget(1000), str(tmp_path))
    plain = training_table(DIM)
    with pytest.raises(ValueError, match="not attached to a budget"):
        plain.tier_figures()
