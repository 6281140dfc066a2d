"""Rows by a bounded filter: never later than with an exact count, too early as rarely as configured, and resumed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage._table import begin_tables
from storage.errors import CheckpointError, ConfigError
from storage.initializers import Initializer
from tests.support.examples import examples
from trainer.checkpoint.load import _restore_filter
from trainer.checkpoint.tables import changed_bytes, changed_table, whole_table
from trainer.embedding import BloomAdmission, EmbeddingTable, RowMemory

DIM = 2
ROW_BYTES = 4 * DIM + 80
FILTER = BloomAdmission(expected_ids=1000, false_rate=0.001)


def table_of(admit_after: int, admission: BloomAdmission | None = FILTER, **more: Any) -> EmbeddingTable:
    return EmbeddingTable(
        "items", DIM, optimizer="sgd", rows=Initializer("constant", 1.0), admit_after=admit_after, admission=admission,
        **more,
    )  # fmt: skip


def look(table: EmbeddingTable, ids: list[int]) -> None:
    wanted = np.array(ids, np.int64)
    if table.native.is_tiered:
        begin_tables([table.native])
    table.lookup(wanted, train=True)


def ids_of(table: EmbeddingTable) -> set[int]:
    return set(table.export_rows()[0].tolist())


def filter_of(table: EmbeddingTable) -> bytes:
    return table.native.filter_view().tobytes()


@settings(max_examples=examples(60), deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(-20, 60), max_size=8), max_size=30),
    admit_after=st.sampled_from([2, 3, 4, 5, 16, 17]),
)
def test_a_nearly_empty_filter_gives_the_rows_of_an_exact_count(batches: list[list[int]], admit_after: int) -> None:
    table, exact = table_of(admit_after), table_of(admit_after, None)
    seen: Counter[int] = Counter()
    for ids in batches:
        look(table, ids)
        look(exact, ids)
        table.lookup(np.arange(-20, 60), train=False)  # evaluation counts nothing
        seen.update(ids)
        due = {one for one, count in seen.items() if count >= admit_after}
        assert due == ids_of(exact)
        early = ids_of(table) - due
        assert due <= ids_of(table)
        assert len(early) <= 1  # 80 ids in a filter for 1,000: none in all likelihood
        assert len(table.export_counts()[0]) == 0
    assert abs(table.waiting() - len(set(seen) - ids_of(table))) <= 2


@pytest.mark.parametrize("admit_after", [2, 3, 6])
def test_a_full_filter_admits_as_few_ids_early_as_configured(admit_after: int) -> None:
    rate, count = 0.05, 40_000
    table = table_of(admit_after, BloomAdmission(count, rate))
    rng = np.random.default_rng(1)
    for ids in np.array_split(rng.permutation(np.repeat(np.arange(count), admit_after - 1)), 100):
        table.lookup(ids, train=True)
    # No id was seen often enough, and the filter was filling up all the while.
    assert 0 < table.size() < rate * count
    assert abs(table.waiting() + table.size() - count) < 0.02 * count


def test_an_erased_id_has_its_row_again_at_its_next_occurrence() -> None:
    table = table_of(3)
    look(table, [1, 1, 1, 2])
    table.erase(np.array([1, 2]))
    assert table.size() == 0
    look(table, [1, 2])
    assert ids_of(table) == {1}
    look(table, [2])
    assert ids_of(table) == {1, 2}


def saved(table: EmbeddingTable, since: int | None) -> tuple[dict[str, np.ndarray] | None, int]:
    """Returns the arrays of a full commit, or those that changed after a stamp, as a commit would hold them."""
    stamp = table.advance()
    arrays = whole_table(table) if since is None else changed_table(table, since)
    return None if arrays is None else {name: array.copy() for name, array in arrays.items()}, stamp


def restore(table: EmbeddingTable, parts: list[tuple[dict[str, np.ndarray] | None, int]]) -> EmbeddingTable:
    table.set_stamp(parts[-1][1] + 1)
    for arrays, stamp in parts:
        if arrays is not None:
            table.restore(*(arrays[name] for name in ("ids", "rows", "slots", "counts", "stamps", "ticks")))
            _restore_filter(table, arrays, Path("commit"), stamp)
    return table


def test_a_full_commit_and_increments_bring_back_every_counter(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    big = BloomAdmission(200_000, 0.01)
    table = table_of(3, big)
    with RowMemory(table.native.filter_bytes + 200 * ROW_BYTES, tmp_path) as memory:
        tiered = table_of(3, big, memory=memory)
        parts: list[tuple[dict[str, np.ndarray] | None, int]] = []
        for _ in range(4):
            for _ in range(20):
                ids = rng.integers(0, 1000, 50).tolist()
                look(table, ids)
                look(tiered, ids)
            since = parts[-1][1] if parts else None
            if since is not None:
                assert changed_bytes(table, since) == changed_bytes(tiered, since)
            parts.append(saved(table, since))
            tiered.advance()
        assert filter_of(tiered) == filter_of(table)
        assert tiered.waiting() == table.waiting()
    pages = [len(arrays["filter_pages"]) for arrays, _ in parts if arrays is not None]
    whole = len(table.native.filter_view())
    assert pages[0] < whole  # only the pages that were ever written
    assert pages[-1] < pages[0]
    assert saved(table, parts[-1][1])[0] is None  # nothing changed
    again = restore(table_of(3, big), parts)
    assert filter_of(again) == filter_of(table)
    assert again.waiting() == table.waiting()
    again.set_stamp(table.stamp)
    for one in (table, again):
        look(one, list(range(900, 1100)))
    mine, other = (saved(one, parts[-1][1])[0] for one in (table, again))
    assert mine is not None
    assert other is not None
    assert {name: array.tobytes() for name, array in mine.items()} == {
        name: array.tobytes() for name, array in other.items()
    }


@pytest.mark.parametrize("admit_after", [2, 4, 5, 200])
def test_a_resumed_table_judges_ids_that_wait_by_the_new_threshold(admit_after: int) -> None:
    table = table_of(4)
    look(table, [1, 2, 2, 3, 3, 3])
    again = restore(table_of(admit_after), [saved(table, None)])
    assert again.size() == 0
    look(again, [1, 2, 3])
    assert ids_of(again) == {one for one in (1, 2, 3) if one + 1 >= admit_after}


@pytest.mark.parametrize("admit_after", [1, 2, 4, 5])
def test_an_exact_count_is_judged_by_the_new_threshold_too(admit_after: int) -> None:
    table = table_of(4, None)
    look(table, [1, 2, 2, 3, 3, 3])
    again = table_of(admit_after, None)
    again.restore_counts(*table.export_counts())
    look(again, [1, 2, 3])
    due = {one for one in (1, 2, 3) if one + 1 >= admit_after}
    assert ids_of(again) == due
    assert set(again.export_counts()[0].tolist()) == {1, 2, 3} - due
    assert again.export_ids(np.array(sorted(due), np.int64))[2].tolist() == [one + 1 for one in sorted(due)]


def test_a_filter_of_another_shape_is_refused() -> None:
    table = table_of(2)
    look(table, [1])
    for admission in (BloomAdmission(9_000_000, 0.001), BloomAdmission(1000, 0.1), None):
        with pytest.raises(CheckpointError, match="only admit_after can change"):
            restore(table_of(2, admission), [saved(table, None)])
    arrays, stamp = saved(table, None)
    assert arrays is not None
    older = {**arrays, "filter_shape": arrays["filter_shape"][:3]}
    with pytest.raises(CheckpointError, match="made by another release"):
        restore(table_of(2), [(older, stamp)])


def test_the_filter_counts_against_the_dram_of_the_tables(tmp_path: Path) -> None:
    bytes_ = table_of(2).native.filter_bytes
    with RowMemory(bytes_, tmp_path) as memory, pytest.raises(ConfigError, match="filter of table 'items'") as refused:
        table_of(2, memory=memory)
    assert refused.value.field == "training.dram_bytes"
    with RowMemory(bytes_ + 30 * ROW_BYTES, tmp_path) as memory:
        table = table_of(2, memory=memory)
        for first in range(0, 100, 10):
            look(table, list(range(first, first + 10)) * 2)
        assert table.size() == 100
        assert table.rows_on_ssd() >= 70
        assert memory.figures().memory_bytes > bytes_


@pytest.mark.parametrize(
    ("admit_after", "options", "field"),
    [
        (1, {"expected_ids": 10}, "admit_after"),
        (257, {"expected_ids": 10}, "admit_after"),
        (2, {"expected_ids": 0}, "admission.expected_ids"),
        (2, {"expected_ids": 10, "false_rate": 0.9}, "admission.false_rate"),
        (2, {"expected_ids": 10, "false_rate": float("nan")}, "admission.false_rate"),
    ],
)
def test_values_out_of_range_are_refused_by_name(admit_after: int, options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        table_of(admit_after, BloomAdmission(**options))
    assert refused.value.field == field
