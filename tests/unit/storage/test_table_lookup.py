"""Batch lookups beside an obvious numpy reference: the same bits, whichever tier a row came from."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage._table import Lookup, RowSource, Table
from tests.support.examples import examples

DIMS = (3, 16)
IDS = np.array([-(2**63), -1, 0, 2**63 - 1, *range(1, 30)], np.int64)
ROWS = [np.random.default_rng(dim).standard_normal((len(IDS), dim)).astype(np.float32) for dim in DIMS]
KNOWN = [dict(zip(IDS.tolist(), rows, strict=True)) for rows in ROWS]
UNRESOLVED, ABSENT = 100, 200  # ids from here on

bags = st.lists(
    st.lists(st.sampled_from(IDS.tolist()) | st.sampled_from([UNRESOLVED, UNRESOLVED + 1, ABSENT]), max_size=7),
    min_size=3,
    max_size=3,
)
features = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(1, 5), bags), min_size=1, max_size=4
)  # table, pooling, length, bags


def reference(table: int, pooling: int, length: int, lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    dim = DIMS[table]
    out = np.zeros((len(lists), length, dim) if pooling == 2 else (len(lists), dim), np.float32)
    mask = np.zeros((len(lists), length), np.uint8)
    for b, ids in enumerate(lists):
        for i, id_ in enumerate(ids[:length] if pooling == 2 else ids):
            if id_ not in KNOWN[table]:
                continue
            if pooling == 2:
                out[b, i] = KNOWN[table][id_]
                mask[b, i] = 1
            else:
                out[b] += KNOWN[table][id_]
        if pooling == 1 and ids:
            out[b] /= np.float32(len(ids))
    return out, mask


@settings(max_examples=examples(150), deadline=None)
@given(features=features, resident=st.sets(st.sampled_from(range(len(IDS)))))
def test_results_are_the_reference_bit_for_bit(features: list[Any], resident: set[int]) -> None:
    tables = [Table(dim) for dim in DIMS]
    sources: list[RowSource] = [*tables]
    inside = sorted(resident)
    for table, rows in zip(tables, ROWS, strict=True):
        table.insert_or_assign(IDS[inside], rows[inside])
    lookup = Lookup(sources, [(table, pooling, length) for table, pooling, length, _ in features])
    for _ in range(2):  # the session's scratch is used again
        expected = [reference(*feature) for feature in features]
        values = [np.array([i for ids in lists for i in ids], np.int64) for *_, lists in features]
        offsets = [np.cumsum([0, *map(len, lists)]) for *_, lists in features]
        outputs = [np.full_like(out, np.nan) for out, _ in expected]
        masks = [np.full_like(mask, 9) if f[1] == 2 else None for f, (_, mask) in zip(features, expected, strict=True)]
        missing = lookup.begin(3, values, offsets, outputs, masks)
        asked = [lookup.missing(t) for t in range(2)]
        used = [
            {i for t, p, n, lists in features if t == table for ids in lists for i in (ids[:n] if p == 2 else ids)}
            for table in range(2)
        ]
        assert missing == sum(map(len, asked))
        for t in range(2):
            assert sorted(asked[t].tolist()) == sorted(used[t] - set(IDS[inside].tolist()))
            rows = np.array([KNOWN[t].get(i, np.full(DIMS[t], 99)) for i in asked[t].tolist()], np.float32)
            state = [1 if i in KNOWN[t] else 0 if i >= ABSENT else 2 for i in asked[t].tolist()]
            lookup.supply(t, rows.reshape(-1, DIMS[t]), np.array(state, np.uint8))
        dram, supplied, absent, unresolved, overlay = lookup.finish()
        for (out, mask), got, got_mask in zip(expected, outputs, masks, strict=True):
            assert got.tobytes() == out.tobytes()
            assert got_mask is None or np.array_equal(got_mask, mask)
        occurrences = [i for _, p, n, lists in features for ids in lists for i in (ids[:n] if p == 2 else ids)]
        assert dram == sum(i in set(IDS[inside].tolist()) for i in occurrences)
        assert absent == sum(i >= ABSENT and i not in KNOWN[0] for i in occurrences)
        assert unresolved == sum(UNRESOLVED <= i < ABSENT for i in occurrences)
        assert dram + supplied + absent + unresolved == len(occurrences)
        assert overlay == 0


@pytest.mark.parametrize("dim", [1, 5, 64, 1024])
def test_long_bags_are_summed_in_the_order_of_their_ids(dim: int) -> None:
    rng = np.random.default_rng(dim)
    rows = rng.standard_normal((500, dim)).astype(np.float32)
    table = Table(dim)
    table.insert_or_assign(np.arange(500), rows)
    values = rng.integers(0, 500, 4000)
    offsets = np.array([0, 1, 1, 2500, 4000])
    out = np.empty((4, dim), np.float32)
    lookup = Lookup([table], [(0, 0, 0)])
    assert lookup.begin(4, [values], [offsets], [out], [None]) == 0
    assert lookup.finish() == (4000, 0, 0, 0, 0)
    expected = np.zeros((4, dim), np.float32)
    for b in range(4):
        for i in values[offsets[b] : offsets[b + 1]]:
            expected[b] += rows[i]
    assert out.tobytes() == expected.tobytes()


def test_the_lookup_keeps_its_tables_and_the_callers_arrays() -> None:
    lookup = Lookup([Table(2)], [(0, 2, 1)])
    outputs = np.empty((2, 1, 2), np.float32)
    lookup.begin(2, [np.array([1, 2])], [np.array([0, 1, 2])], [outputs[:]], [np.empty((2, 1), np.uint8)])
    gc.collect()
    lookup.supply(0, np.array([[1, 2], [3, 4]], np.float32), np.array([1, 1], np.uint8))
    assert lookup.finish() == (0, 2, 0, 0, 0)
    assert outputs.ravel().tolist() == [1, 2, 3, 4]
