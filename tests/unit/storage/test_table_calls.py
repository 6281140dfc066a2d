"""The ways to call a lookup: on several threads, into parts of an array, over any kind of array."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from storage._table import Lookup, Table

DIM = 8


def filled(n: int = 20_000) -> tuple[Table, np.ndarray]:
    rows = np.random.default_rng(0).standard_normal((n, DIM)).astype(np.float32)
    table = Table(DIM)
    table.insert_or_assign(np.arange(n), rows)
    return table, rows


@pytest.mark.parametrize("threads", [1, 2, 5, 64])
def test_threads_give_the_same_bits(threads: int) -> None:
    table, rows = filled()
    ids = np.random.default_rng(1).integers(0, 25_000, 30_000)
    out, found = np.empty((len(ids), DIM), np.float32), np.empty(len(ids), np.uint8)
    assert table.find(ids, out, found, threads) == np.count_nonzero(ids < 20_000)
    np.testing.assert_array_equal(found, ids < 20_000)
    np.testing.assert_array_equal(out, np.where(found[:, None], rows[np.minimum(ids, 19_999)], 0))

    offsets = np.arange(0, len(ids) + 1, 3)
    lookup, batch = Lookup([table], [(0, 0, 0)]), len(offsets) - 1
    pooled = np.empty((batch, DIM), np.float32)
    assert lookup.begin(batch, [ids], [offsets], [pooled], [None], threads=threads) == len(
        set(ids[ids >= 20_000].tolist())
    )
    late = lookup.missing(0)
    lookup.supply(0, np.repeat(late[:, None], DIM, 1).astype(np.float32), np.ones(len(late), np.uint8))
    lookup.finish()
    truth = np.where(found[:, None], out, ids[:, None]).astype(np.float32).reshape(batch, 3, DIM)
    np.testing.assert_array_equal(pooled, (truth[:, 0] + truth[:, 1]) + truth[:, 2])
    assert lookup.table_totals().tolist() == [[np.count_nonzero(found), np.count_nonzero(ids >= 20_000), 0, 0, 0]]


def test_several_sessions_share_the_helping_threads() -> None:
    table, rows = filled()
    wrong: list[str] = []

    def session(seed: int) -> None:
        ids = np.random.default_rng(seed).integers(0, 20_000, 15_000)
        out, found = np.empty((len(ids), DIM), np.float32), np.empty(len(ids), np.uint8)
        for _ in range(20):
            out.fill(np.nan)
            table.find(ids, out, found, 3)
            if out.tobytes() != rows[ids].tobytes():
                wrong.append(f"session {seed}")

    sessions = [threading.Thread(target=session, args=(seed,)) for seed in range(4)]
    for each in sessions:
        each.start()
    for each in sessions:
        each.join()
    assert not wrong


@pytest.mark.parametrize("threads", [0, 65])
def test_a_wrong_number_of_threads_is_refused(threads: int) -> None:
    table, _ = filled(10)
    out, found = np.empty((1, DIM), np.float32), np.empty(1, np.uint8)
    with pytest.raises(ValueError, match="threads: expected 1 to 64"):
        table.find(np.array([1]), out, found, threads)
    lookup = Lookup([table], [(0, 0, 0)])
    with pytest.raises(ValueError, match="threads: expected 1 to 64"):
        lookup.begin(1, [np.array([1])], [np.array([0, 1])], [out], [None], threads=threads)


def test_bags_may_lie_apart_and_nothing_between_them_is_written() -> None:
    table, rows = filled(1000)
    rng = np.random.default_rng(2)
    for batch in (1, 3, 700):
        for single in (True, False):
            lengths = np.ones(batch, np.int64) if single else rng.integers(0, 4, batch)
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            values = rng.integers(0, 1000, offsets[-1])
            room = np.full((batch, 5 * DIM), 7, np.float32)
            lengths_of_two = room[:, 3 * DIM :].reshape(batch, 2, DIM)
            outputs = (room[:, DIM : 2 * DIM], room[:, 2 * DIM : 3 * DIM], lengths_of_two)
            assert np.shares_memory(outputs[2], room)
            apart = (np.empty((batch, DIM), np.float32), np.empty((batch, DIM), np.float32))
            masks = (None, None, np.empty((batch, 2), np.uint8))
            lookup = Lookup([table], [(0, 0, 0), (0, 1, 0), (0, 2, 2)])
            for _ in range(2):
                assert lookup.begin(batch, [values] * 3, [offsets] * 3, outputs, masks) == 0
                lookup.finish()
            beside = (*apart, np.empty((batch, 2, DIM), np.float32))
            lookup.begin(batch, [values] * 3, [offsets] * 3, beside, masks)
            lookup.finish()
            for got, expected in zip(outputs, beside, strict=True):
                assert got.tobytes() == expected.tobytes()
            assert (room[:, :DIM] == 7).all()
            np.testing.assert_array_equal(outputs[0][lengths == 1], rows[values[offsets[:-1][lengths == 1]]])


def test_a_tuple_of_outputs_is_kept_and_another_batch_is_checked_again() -> None:
    table, rows = filled(100)
    lookup = Lookup([table], [(0, 0, 0)])
    given = (np.empty((2, DIM), np.float32)[:],)
    kept = given[0].base
    for first in (5, 40):
        lookup.begin(2, [np.array([first, 7])], [np.array([0, 1, 2])], given, (None,))
        gc.collect()
        lookup.finish()
        np.testing.assert_array_equal(kept, rows[[first, 7]])
    with pytest.raises(ValueError, match=r"outputs\[0\]: expected shape \(3, 8\)"):
        lookup.begin(3, [np.arange(3)], [np.arange(4)], given, (None,))
    other = (np.empty((2, DIM), np.float32),)
    lookup.begin(2, [np.array([1, 2])], [np.array([0, 1, 2])], other, (None,))
    lookup.finish()
    np.testing.assert_array_equal(other[0], rows[[1, 2]])


def test_outputs_in_a_list_are_let_go_with_the_lookup() -> None:
    table, _ = filled(100)
    lookup = Lookup([table], [(0, 0, 0)])
    outputs = [np.empty((2, DIM), np.float32)]
    freed = weakref.ref(outputs[0])
    lookup.begin(2, [np.array([1, 2])], [np.array([0, 1, 2])], outputs, [None])
    lookup.finish()
    del outputs
    assert freed() is None


@pytest.mark.parametrize(
    "wrong",
    [
        np.empty((3, DIM), np.float32)[::-1],
        np.broadcast_to(np.empty(DIM, np.float32), (3, DIM)),
        np.empty((3, 2 * DIM), np.float32)[:, ::2],
        np.empty((3, DIM), np.float64),
    ],
)
def test_outputs_that_a_lookup_cannot_write_are_refused(wrong: np.ndarray) -> None:
    lookup = Lookup([filled(10)[0]], [(0, 0, 0)])
    with pytest.raises((TypeError, ValueError), match=r"outputs\[0\]: expected a C-contiguous, writable float32 array"):
        lookup.begin(3, [np.arange(3)], [np.arange(4)], [wrong], [None])
    with pytest.raises(TypeError, match="outputs: expected a list or a tuple, got int"):
        lookup.begin(3, [np.arange(3)], [np.arange(4)], 3, [None])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (None, r"weights\[1\]: expected .* got NoneType"),
        ([None, np.ones(3, np.float32)], r"weights\[1\]: expected shape \(2,\), got \(3,\)"),
        ([np.ones(2, np.float32), np.ones(2, np.float32)], r"weights\[0\]: only a weighted feature takes them"),
        ([None], "weights: expected 2 entries, one a feature, got 1"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights: list[Any] | None, message: str) -> None:
    table, _ = filled(10)
    lookup = Lookup([table], [(0, 0, 0), (0, 3, 0)])
    ids, ends, out = np.array([1, 2]), np.array([0, 2]), np.empty((1, DIM), np.float32)
    with pytest.raises((ValueError, TypeError), match=message):
        lookup.begin(1, [ids] * 2, [ends] * 2, [out, out.copy()], [None, None], weights=weights)


def test_arrays_need_not_be_of_numpy() -> None:
    torch = pytest.importorskip("torch")
    table, rows = filled(100)
    ids = torch.arange(0, 100, 3)
    out, found = torch.empty((len(ids), DIM)), torch.empty(len(ids), dtype=torch.uint8)
    assert table.find(ids, out, found) == len(ids)
    np.testing.assert_array_equal(out.numpy(), rows[::3])
    memory = bytearray(len(ids))
    assert table.find(ids.numpy(), out.numpy(), memory) == len(ids)  # type: ignore[arg-type]
    assert memory == b"\x01" * len(ids)
    swapped = np.arange(3).astype(">i8")
    with pytest.raises(TypeError, match="ids: expected a C-contiguous int64"):
        table.find(swapped, out.numpy(), found.numpy())
