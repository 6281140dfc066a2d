"""Rows that nobody uses, or that are small, go behind training: a plain model, DRAM and SSD, and resumed runs agree."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from storage._table import begin_tables
from storage.errors import ConfigError
from tests.support.examples import examples
from trainer.embedding import EmbeddingTable, Eviction, RowMemory, SparseSGD

DIM = 2
ROW_BYTES = 4 * DIM + 80
# Trainings are run and stores are made for each example, so finding a smaller one would take long.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
BATCHES = st.lists(st.lists(st.integers(-10, 50), max_size=5), min_size=20, max_size=80)


def table_of(eviction: Eviction | None, memory: RowMemory | None = None, **more: Any) -> EmbeddingTable:
    return EmbeddingTable("items", DIM, optimizer="sgd", eviction=eviction, memory=memory, **more)


def step(table: EmbeddingTable, ids: list[int], seconds: float) -> None:
    wanted = np.array(ids, np.int64)
    if table.native.is_tiered:
        begin_tables([table.native])
    table.lookup(wanted, train=True)
    table.add_gradients(wanted, np.full((len(ids), DIM), 0.5, np.float32))
    SparseSGD([table], lr=0.01).step(seconds=seconds)


def resumed(table: EmbeddingTable, make: Callable[[], EmbeddingTable]) -> EmbeddingTable:
    """Returns a new table with all that a commit has of the old one."""
    new = make()
    new.set_stamp(table.stamp)
    new.set_steps(table.steps)
    new.restore(*table.export_rows())
    new.restore_counts(*table.export_counts())
    new.restore_removed(*table.removed())
    new.restore_eviction(json.loads(json.dumps(table.eviction_state())))
    return new


def content(table: EmbeddingTable) -> list[bytes]:
    parts = (table.export_rows(), table.removed(), table.export_counts())
    return [array.tobytes() for part in parts for array in part]


@settings(max_examples=examples(40), deadline=None, phases=PHASES)
@given(batches=BATCHES, after=st.integers(1, 40), period=st.none() | st.integers(1, 9))
def test_a_row_goes_when_it_was_not_used_for_so_many_steps_and_at_most_three_periods_later(
    batches: list[list[int]], after: int, period: int | None
) -> None:
    eviction = Eviction(after_steps=after, period_steps=period)
    table = table_of(eviction)
    length = period or max(1, after // 16)
    used: dict[int, int] = {}
    for number, ids in enumerate(batches, 1):
        step(table, ids, 0.0)
        used |= dict.fromkeys(ids, number)
        rows = set(table.export_rows()[0].tolist())
        assert rows <= set(used)
        gone = set(used) - rows
        assert all(number - used[one] > after for one in gone), "a row went too early"
        assert all(number - used[one] <= after + 3 * length for one in rows), "a row stayed too long"
        assert gone <= set(table.removed()[0].tolist())
        for one in gone:
            del used[one]


@pytest.mark.slow
@settings(max_examples=examples(10), deadline=None, phases=PHASES)
@given(
    batches=BATCHES,
    after_steps=st.none() | st.integers(1, 40),
    after_seconds=st.none() | st.floats(1, 60),
    below_norm=st.none() | st.floats(0.01, 0.1),
    period=st.none() | st.integers(1, 9),
    cut=st.integers(0, 100),
    gap=st.sampled_from([0.3, 1.0, 7.0]),
)
def test_dram_ssd_and_a_resumed_run_evict_the_same_rows_at_the_same_steps(
    batches: list[list[int]],
    after_steps: int | None,
    after_seconds: float | None,
    below_norm: float | None,
    period: int | None,
    cut: int,
    gap: float,
) -> None:
    if after_steps is None and after_seconds is None and below_norm is None:
        after_steps = 7
    eviction = Eviction(after_steps, after_seconds, below_norm, period)
    folder = Path(tempfile.mkdtemp())
    try:
        with ExitStack() as stack:
            one, two, again = (stack.enter_context(RowMemory(16 * ROW_BYTES, folder)) for _ in range(3))
            tables = [table_of(eviction), table_of(eviction), table_of(eviction, one), table_of(eviction, two)]
            for number, ids in enumerate(batches):
                if number == cut:
                    tables[1] = resumed(tables[1], lambda: table_of(eviction))
                    tables[3] = resumed(tables[3], lambda: table_of(eviction, again))
                for table in tables:
                    step(table, ids, number * gap)
                wanted = content(tables[0])
                for table in tables[1:] if number % 5 == 0 else tables[1:2]:
                    assert content(table) == wanted, f"step {number + 1}"
    finally:
        shutil.rmtree(folder)


def test_a_small_row_goes_after_a_period_without_use_and_a_large_one_stays() -> None:
    table = table_of(Eviction(below_norm=0.01, period_steps=4))
    step(table, list(range(100)), 0.0)
    rows = np.zeros((100, DIM), np.float32)
    rows[:50] = 1.0
    ids, _, slots, counts, stamps, ticks = table.export_rows()
    table.restore(ids, rows, slots, counts, stamps, ticks)
    for _ in range(16):
        step(table, [98], 0.0)
    assert table.export_rows()[0].tolist() == [*range(50), 98]


def test_evaluation_is_no_use_and_evicts_nothing() -> None:
    table = table_of(Eviction(after_steps=4))
    step(table, [1, 2], 0.0)
    for _ in range(50):
        table.lookup(np.array([1, 2]), train=False)
    assert table.size() == 2
    for _ in range(8):
        table.lookup(np.array([1]), train=False)
        step(table, [2], 0.0)
    assert table.export_rows()[0].tolist() == [2]


def test_seconds_are_those_of_the_caller_and_do_not_go_back() -> None:
    table = table_of(Eviction(after_seconds=160.0))
    step(table, [1, 2], 1000.0)
    for seconds in (1005.0, 900.0, 1020.0, 0.0, 1100.0, 1159.0):
        step(table, [2], seconds)
        assert table.size() == 2
    for seconds in range(1180, 1290, 10):
        step(table, [2], seconds)
    assert table.export_rows()[0].tolist() == [2]


def test_no_step_has_more_than_its_part_of_the_work() -> None:
    """Rows that are all due at once go a piece after each step of a period."""
    table = table_of(Eviction(after_steps=1600))
    ids = np.arange(20_000)
    table.lookup(ids, train=True)
    sizes = []
    for _ in range(1850):
        step(table, [1], 0.0)
        sizes.append(table.size())
    drops = -np.diff(sizes)
    assert sizes[-1] == 1
    assert drops.max() < 2 * 20_000 / 100
    assert (drops > 0).sum() > 90


def test_an_eviction_that_is_new_on_resume_counts_from_then_on() -> None:
    table = table_of(None)
    for ids in ([1, 2, 3], [2, 3]):
        step(table, ids, 0.0)
    table = resumed(table, lambda: table_of(Eviction(after_steps=16)))
    sizes = []
    for _ in range(22):
        step(table, [3], 0.0)
        sizes.append(table.size())
    assert sizes[15] == 3
    assert sizes[-1] == 1
    table = resumed(table, lambda: table_of(None))
    step(table, [7], 0.0)
    ticks = table.export_rows()[-1]
    assert ticks.min() > 1


def test_a_larger_norm_on_resume_looks_at_rows_again() -> None:
    table = table_of(Eviction(below_norm=1e-6, period_steps=2))
    step(table, [1, 2, 3], 0.0)
    for _ in range(10):
        step(table, [3], 0.0)
    assert table.size() == 3
    table = resumed(table, lambda: table_of(Eviction(below_norm=10.0, period_steps=2)))
    for _ in range(10):
        step(table, [3], 0.0)
    assert table.export_rows()[0].tolist() == [3]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "eviction"),
        ({"period_steps": 3}, "eviction"),
        ({"after_steps": 0}, "eviction.after_steps"),
        ({"after_seconds": 0.0}, "eviction.after_seconds"),
        ({"after_seconds": float("nan")}, "eviction.after_seconds"),
        ({"below_norm": float("inf")}, "eviction.below_norm"),
        ({"after_steps": 5, "period_steps": 0}, "eviction.period_steps"),
    ],
)
def test_values_out_of_range_are_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Eviction(**options)
    assert refused.value.field == field
