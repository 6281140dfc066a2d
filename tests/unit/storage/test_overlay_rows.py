"""Rows of overlays as they are held: the same that are found decoded, whoever copies them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage._table import OverlayTable, decode_rows, row_bytes
from tests.support.examples import examples

DIM = 5
ROW, REMOVED, SPILLED = 0, 1, 2
some_ids = st.lists(st.integers(-30, 30), max_size=25, unique=True).map(lambda ids: np.array(ids, np.int64))


def check(table: OverlayTable, mask: int, ids: np.ndarray, padding: int, threads: int) -> None:
    values, states = np.empty((len(ids), DIM), np.float32), np.empty(len(ids), np.uint8)
    table.find(mask, ids, values, states, np.empty(len(ids), np.uint8))
    size = row_bytes(table.row_type, DIM)
    rows = np.full((len(ids), size + padding), 9, np.uint8)
    at, copied = np.full(len(ids), -1, np.int64), np.full(len(ids), 9, np.uint8)
    count = table.copy_rows(mask, ids, rows, at, copied, threads)
    np.testing.assert_array_equal(copied, states)
    assert sorted(at[:count].tolist()) == np.flatnonzero(states == ROW + 1).tolist()
    decoded = decode_rows(table.row_type, DIM, np.ascontiguousarray(rows[:count, :size]))
    np.testing.assert_array_equal(decoded, values[at[:count]])
    assert not rows[:count, size:].any()


@settings(max_examples=examples(60), deadline=None)
@given(
    row_type=st.sampled_from(["fp32", "fp16", "bf16", "int8"]),
    staged=st.lists(st.tuples(some_ids, st.integers(0, 2)), max_size=4),
    mask=st.integers(0, 15),
    ids=some_ids,
    padding=st.sampled_from([0, 4]),
    discarded=st.integers(0, 4),
)
def test_rows_are_those_that_are_found(
    row_type: str,
    staged: list[tuple[np.ndarray, int]],
    mask: int,
    ids: np.ndarray,
    padding: int,
    discarded: int,
) -> None:
    table = OverlayTable(DIM, row_type=row_type)
    rng = np.random.default_rng(1)
    for overlay, (changed, kind) in enumerate(staged):
        rows = rng.standard_normal((len(changed), DIM)).astype(np.float32) if kind == ROW else None
        table.stage(overlay, changed, rows, kind)
    check(table, mask, ids, padding, 1)
    table.discard(discarded)
    check(table, mask, ids, padding, 1)


@pytest.mark.parametrize("threads", [1, 4])
def test_many_rows_by_several_threads(threads: int) -> None:
    table = OverlayTable(DIM, row_type="int8")
    rng = np.random.default_rng(2)
    every = np.arange(20_000, dtype=np.int64)
    table.stage(0, every[::2].copy(), rng.standard_normal((10_000, DIM)).astype(np.float32), ROW)
    table.stage(1, every[::3].copy(), None, REMOVED)
    table.stage(2, every[::5].copy(), rng.standard_normal((4_000, DIM)).astype(np.float32), ROW)
    table.stage(3, every[::7].copy(), None, SPILLED)
    for mask in range(16):
        check(table, mask, every, 0, threads)


def test_wrong_arguments_are_refused_by_name() -> None:
    table = OverlayTable(DIM)
    ids, rows = np.arange(3, dtype=np.int64), np.empty((3, 4 * DIM), np.uint8)
    at, states = np.empty(3, np.int64), np.empty(3, np.uint8)
    for wrong in (rows[:2], rows[:, :8].copy()):
        with pytest.raises(ValueError, match="rows"):
            table.copy_rows(1, ids, wrong, at, states)
    with pytest.raises(ValueError, match="at"):
        table.copy_rows(1, ids, rows, at[:2], states)
    with pytest.raises(ValueError, match="states"):
        table.copy_rows(1, ids, rows, at, states[:2])
    for threads in (0, 65):
        with pytest.raises(ValueError, match="threads"):
            table.copy_rows(1, ids, rows, at, states, threads)
