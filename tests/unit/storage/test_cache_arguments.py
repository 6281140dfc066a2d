"""A cache and its tables from Python: shapes and numbers are checked, and the error names the argument."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from storage._table import Cache, CacheTable, CapacityExceeded, Lookup, decode_rows, encode_rows

IDS = np.arange(4, dtype=np.int64)
ROWS = np.arange(16, dtype=np.float32).reshape(4, 4)


def found_in(table: CacheTable, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    out = np.full((len(ids), table.dim), np.nan, np.float32)
    found = np.zeros(len(ids), np.uint8)
    assert table.find(ids, out, found) == found.sum()
    return out, found.astype(bool)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((0, 8, 1), "row_bytes"), ((6, 8, 1), "row_bytes"), ((16, 1 << 40, 1), "capacity_rows"), ((16, 8, 0), "tables")],
)
def test_a_cache_that_cannot_be_is_refused(arguments: tuple[int, int, int], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Cache(*arguments)


def test_a_table_that_does_not_fit_its_cache_is_refused() -> None:
    cache = Cache(16, 8, 2)
    with pytest.raises(ValueError, match="table"):
        CacheTable(cache, 2, 4)
    with pytest.raises(ValueError, match="dim"):
        CacheTable(cache, 0, 5)
    with pytest.raises(ValueError, match="row_type"):
        CacheTable(cache, 0, 4, "fp8")
    assert CacheTable(cache, 0, 8, "fp16").row_bytes == 16
    for ask in (cache.rows_of, cache.is_complete, cache.mark_complete, cache.evicted_of, cache.hits_of, cache.curve):
        with pytest.raises(ValueError, match="table"):
            ask(2)


def test_wrong_arrays_are_refused_by_name() -> None:
    table = CacheTable(Cache(16, 8, 1), 0, 4)
    with pytest.raises(TypeError, match="ids"):
        table.insert_or_assign(IDS.astype(np.int32), ROWS)
    with pytest.raises(ValueError, match="rows"):
        table.insert_or_assign(IDS, ROWS[:2])
    with pytest.raises(ValueError, match="freq"):
        table.insert_and_evict(IDS, ROWS, np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match="found"):
        table.find(IDS, np.empty((4, 4), np.float32), np.empty(3, np.uint8))
    with pytest.raises(ValueError, match="limit"):
        table.export_batch(0, 0)
    assert table.size() == 0


def test_a_cache_without_room_says_so() -> None:
    table = CacheTable(Cache(16, 0, 1), 0, 4)
    with pytest.raises(CapacityExceeded, match="capacity_rows"):
        table.insert_or_assign(IDS, ROWS)


@pytest.mark.parametrize("row_type", ["fp32", "fp16", "bf16", "int8"])
def test_float_rows_and_encoded_rows_are_the_same_rows(row_type: str) -> None:
    rows = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)
    encoded = encode_rows(row_type, rows)
    cache = Cache(encoded.shape[1], 100, 2)
    floats, stored = CacheTable(cache, 0, 4, row_type), CacheTable(cache, 1, 4, row_type)
    floats.insert_or_assign(IDS, rows)
    stored.insert_or_assign(IDS, encoded)
    for table in (floats, stored):
        out, found = found_in(table, IDS)
        assert found.all()
        np.testing.assert_array_equal(out, decode_rows(row_type, 4, encoded))
        cursor, ids, exported, freq = table.export_encoded(0, 100)
        assert cursor == -1
        np.testing.assert_array_equal(exported, encoded[ids])
        np.testing.assert_array_equal(freq, 4)
        np.testing.assert_array_equal(table.export_batch(0, 100)[2], decode_rows(row_type, 4, encoded)[ids])


def test_a_table_keeps_its_cache_alive_and_a_lookup_its_tables() -> None:
    lookup = Lookup([CacheTable(Cache(16, 8, 1), 0, 4)], [(0, 0, 0)])
    gc.collect()
    out = np.empty((1, 4), np.float32)
    assert lookup.begin(1, [IDS], [np.array([0, 4])], [out], [None]) == 4
    lookup.supply(0, ROWS, np.ones(4, np.uint8))
    lookup.finish()
    np.testing.assert_array_equal(out[0], ROWS.sum(axis=0))


def test_bytes_and_rows_are_turned_into_each_other() -> None:
    for row_bytes in (16, 512):
        rows = Cache.capacity_for(row_bytes, 50_000_000, 3)
        assert Cache.bytes_of(row_bytes, rows, 3) <= 50_000_000 < Cache.bytes_of(row_bytes, rows + 1, 3)
    assert Cache.capacity_for(16, 100, 1) == 0


def test_everything_public_has_a_docstring() -> None:
    bare = [
        f"{owner.__name__}.{name}"
        for owner in (Cache, CacheTable)
        for name, member in vars(owner).items()
        if callable(member) and not name.startswith("_") and not member.__doc__
    ]
    assert not bare
