"""Fingerprints: the same for the same content in any order and any parts, another for any other content."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.checkpoint.fingerprint import (
    fingerprint_hex,
    removed_fingerprint,
    rows_fingerprint,
    table_fingerprint,
    weights_fingerprint,
)
from tests.support.examples import examples

MASK = 2**64 - 1


def mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def slow(ids: np.ndarray, rows: np.ndarray) -> int:
    """The definition in plain numbers."""
    total = 0
    for number, row in zip(ids.tolist(), rows, strict=True):
        content = mix((number & MASK) ^ 0x243F6A8885A308D3)
        for column, word in enumerate(row.view(np.uint32).tolist()):
            content += word * (mix(((column + 1) * 0x9E3779B97F4A7C15) & MASK) | 1)
        total += mix(content & MASK)
    return total & MASK


def some(count: int, dim: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return np.unique(rng.integers(-(2**63), 2**63 - 1, count)), rng.standard_normal((count, dim)).astype(np.float32)


def test_it_is_what_its_definition_says() -> None:
    for count, dim in ((0, 4), (1, 1), (300, 3), (17, 64)):
        ids, rows = some(count, dim)
        assert rows_fingerprint(ids, rows) == slow(ids, rows)
    edges = np.array([-(2**63), -1, 0, 2**63 - 1])
    assert rows_fingerprint(edges, np.zeros((4, 2), np.float32)) == slow(edges, np.zeros((4, 2), np.float32))


def test_the_chunks_it_is_computed_in_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, rows = some(1000, 7)
    whole = (rows_fingerprint(ids, rows), removed_fingerprint(ids))
    monkeypatch.setattr("storage.checkpoint.fingerprint._CHUNK_VALUES", 50)
    assert (rows_fingerprint(ids, rows), removed_fingerprint(ids)) == whole


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 200), st.integers(1, 9), st.integers(0, 2**32), st.integers(0, 200))
def test_parts_add_up_in_any_order(count: int, dim: int, seed: int, cut: int) -> None:
    ids, rows = some(count, dim, seed)
    order = np.random.default_rng(seed).permutation(count)
    whole = rows_fingerprint(ids, rows)
    assert rows_fingerprint(ids[order], rows[order]) == whole
    parts = rows_fingerprint(ids[:cut], rows[:cut]) + rows_fingerprint(ids[cut:], rows[cut:])
    assert parts & MASK == whole
    removed = ids[:cut]
    assert table_fingerprint(ids, rows, removed) == (whole + removed_fingerprint(removed)) & MASK


def test_any_changed_bit_changes_it() -> None:
    ids, rows = some(5, 3)
    seen = {rows_fingerprint(ids, rows)}
    for place in np.ndindex(5, 3):
        for bit in range(32):
            changed = rows.copy()
            changed.view(np.uint32)[place] ^= np.uint32(1 << bit)
            seen.add(rows_fingerprint(ids, changed))
    for row in range(5):
        for bit in range(64):
            changed_ids = ids.copy()
            changed_ids.view(np.uint64)[row] ^= np.uint64(1 << bit)
            seen.add(rows_fingerprint(changed_ids, rows))
    assert len(seen) == 1 + 5 * 3 * 32 + 5 * 64


def test_mistakes_that_keep_the_sum_of_the_bits_change_it() -> None:
    ids, rows = some(4, 4)
    zero = rows.copy()
    zero[0] = 0
    minus = zero.copy()
    minus[0] = -0.0
    flipped = rows.copy()
    flipped[:, :2] *= -1  # two signs at once
    swapped = rows[[1, 0, 2, 3]]
    columns = rows[:, [1, 0, 2, 3]]
    wider = np.concatenate([rows, np.zeros((4, 1), np.float32)], axis=1)
    results = [rows_fingerprint(ids, given) for given in (rows, zero, minus, flipped, swapped, columns)]
    results += [rows_fingerprint(ids, -rows), rows_fingerprint(ids[:3], rows[:3]), removed_fingerprint(ids)]
    assert len(set(results)) == len(results)
    assert rows_fingerprint(ids, wider) == results[0]  # dims stand beside it in the manifest


def test_weights_are_names_shapes_and_bits() -> None:
    first = np.arange(6, dtype=np.float32)
    base = weights_fingerprint({"a": first, "b": np.array(2.0)})
    assert weights_fingerprint({"b": np.array(2.0), "a": first}) == base
    assert weights_fingerprint({"b": torch.tensor(2.0, dtype=torch.float64), "a": torch.from_numpy(first)}) == base
    for other in (
        {"a": first, "c": np.array(2.0)},
        {"a": first.reshape(2, 3), "b": np.array(2.0)},
        {"a": first[::-1], "b": np.array(2.0)},
        {"a": first, "b": np.array([2.0])},
        {"a": first},
    ):
        assert weights_fingerprint(other) != base
    assert weights_fingerprint({}) == 0
    half = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    assert weights_fingerprint({"h": half}) == weights_fingerprint({"h": half.view(torch.int16).numpy().view("<u2")})
    assert weights_fingerprint({"m": torch.ones(2, 3).T}) == weights_fingerprint({"m": np.ones((3, 2), np.float32)})


@pytest.mark.parametrize("value", [0, 1, 2**63, MASK])
def test_hex_has_sixteen_digits(value: int) -> None:
    assert int(fingerprint_hex(value), 16) == value
    assert len(fingerprint_hex(value)) == 16
    assert fingerprint_hex(value + MASK + 1) == fingerprint_hex(value)
