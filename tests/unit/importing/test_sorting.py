"""Rows come out sorted, each id once, whatever the order of the files and however little memory there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import InvalidInput
from storage.importing import Block, FileTable, RowSort
from tests.support.examples import examples

DIM = 64
# Parts of 64 KiB, a few hundred rows each.
LITTLE = 1


def table_of(*blocks: Block, removes: bool = False) -> FileTable:
    """Returns a table of these blocks."""

    def ids() -> Iterator[np.ndarray]:
        return (block.ids for block in blocks)

    return FileTable("item", DIM, lambda: iter(blocks), ids, sum(len(block.ids) for block in blocks), removes)


def rows_of(ids: np.ndarray, seed: int = 0) -> np.ndarray:
    """Returns a row for each id, the same wherever the id stands."""
    return (ids[:, None] % 1009 + np.arange(DIM)[None, :] * 0.5 + seed).astype(np.float32)


def sorted_rows(sort: RowSort) -> tuple[np.ndarray, np.ndarray]:
    """Returns all that comes out."""
    ids, rows = [np.empty(0, np.int64)], [np.empty((0, DIM), np.float32)]
    for block in sort.blocks():
        ids.append(block.ids.copy())
        rows.append(block.rows.copy())
    return np.concatenate(ids), np.concatenate(rows)


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 700), min_size=1, max_size=5),
    spread=st.sampled_from([3, 500, 2**40, 2**62]),
    memory=st.sampled_from([LITTLE, 1 << 30]),
)
def test_any_order_of_ids_comes_out_sorted_with_each_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, sizes: list[int], spread: int, memory: int
) -> None:
    random = np.random.default_rng(seed)
    parts = [random.integers(-spread, spread, size) for size in sizes]
    scratch = tmp_path_factory.mktemp("sort")
    sort = RowSort(table_of(*(Block(ids, rows_of(ids), f"part-{n}") for n, ids in enumerate(parts))), memory, scratch)

    ids, rows = sorted_rows(sort)

    wanted = np.unique(np.concatenate(parts))
    np.testing.assert_array_equal(ids, wanted)
    np.testing.assert_array_equal(rows, rows_of(wanted))
    assert sort.repeated == sum(sizes) - len(wanted)
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)], ids=["in order", "the other way round"])
@pytest.mark.parametrize("memory", [LITTLE, 1 << 30])
def test_two_different_rows_of_an_id_are_refused_by_both_files(tmp_path: Path, memory: int, order: slice) -> None:
    ids = np.arange(2000, dtype=np.int64)[::-1].copy()
    other = np.array([5, 77], np.int64)
    blocks = [Block(ids, rows_of(ids), "a.parquet"), Block(other, rows_of(other, seed=1), "b.parquet")][order]
    with pytest.raises(InvalidInput, match=r"the id 5 has two different rows, one in a\.parquet and one in b\.parquet"):
        sorted_rows(RowSort(table_of(*blocks), memory, tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("memory", [LITTLE, 1 << 30])
def test_later_steps_win_and_removed_ids_are_gone(tmp_path: Path, memory: int) -> None:
    ids = np.arange(1000, dtype=np.int64)
    first = Block(ids, rows_of(ids), "0.parquet", steps=np.full(1000, 10, np.int64), removed=np.zeros(1000, np.bool_))
    newer = ids[:200]
    removed = np.zeros(200, np.bool_)
    removed[::2] = True
    steps = np.where(newer < 100, 20, 5)  # the second half is older than what is there
    second = Block(newer, rows_of(newer, seed=7), "1.parquet", steps=steps, removed=removed)
    sort = RowSort(table_of(second, first, removes=True), memory, tmp_path)

    found, rows = sorted_rows(sort)

    kept = np.setdiff1d(ids, newer[(steps == 20) & removed])
    np.testing.assert_array_equal(found, kept)
    replaced = kept < 100
    np.testing.assert_array_equal(rows, np.where(replaced[:, None], rows_of(kept, seed=7), rows_of(kept)))
    assert (sort.repeated, sort.removed) == (200, 50)


def test_counts_of_an_id_that_comes_twice_are_the_larger_one(tmp_path: Path) -> None:
    ids = np.array([4, 2, 4], np.int64)
    block = Block(ids, rows_of(ids), "a", counts=np.array([7, 1, 9], np.uint32))
    (out,) = RowSort(table_of(block), 1 << 20, tmp_path).blocks()
    assert out.ids.tolist() == [2, 4]
    assert out.counts is not None
    assert out.counts.tolist() == [1, 9]


def test_a_row_that_is_not_finite_is_refused_by_its_id_and_file(tmp_path: Path) -> None:
    ids = np.array([3, 8], np.int64)
    rows = rows_of(ids)
    rows[1, 2] = np.nan
    with pytest.raises(InvalidInput, match=re.escape("the row of id 8 in b.npz holds NaN or infinity")):
        sorted_rows(RowSort(table_of(Block(ids, rows, "b.npz")), 1 << 20, tmp_path))


def test_memory_that_is_too_little_for_a_table_says_how_much_it_needs(tmp_path: Path) -> None:
    huge = FileTable("item", 4096, lambda: iter(()), lambda: (np.zeros(1 << 20, np.int64) for _ in range(16)), 16 << 20)
    with pytest.raises(InvalidInput, match="need --memory of at least"):
        sorted_rows(RowSort(huge, LITTLE, tmp_path))
