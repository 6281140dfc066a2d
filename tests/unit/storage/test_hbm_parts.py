"""Tests how a GPU's memory is divided, how a publisher waits for readers, and for which snapshots a view answers."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import ConfigError
from storage.hbm.readers import Turns
from storage.hbm.replica import SPARE, Replica, bytes_of, divide, stride_of
from storage.hbm.statistics import TierCounts
from storage.hbm.visibility import Difference, View
from storage.specs import TableSpec
from storage.tiers.overlays import Overlay
from tests.simulated_gpu import SimulatedGpus

_NO_REPLICA = cast(Any, None)


@pytest.mark.parametrize(("row_bytes", "stride"), [(4, 4), (12, 12), (16, 16), (20, 32), (132, 144), (512, 512)])
def test_rows_begin_where_loads_of_sixteen_bytes_can(row_bytes: int, stride: int) -> None:
    assert stride_of(row_bytes) == stride


@given(
    st.integers(1, 1 << 36),
    st.dictionaries(st.integers(1, 1024).map(lambda n: 4 * n), st.integers(0, 1 << 28), min_size=1, max_size=6),
)
def test_the_bytes_are_divided_by_what_the_rows_take_and_never_exceeded(size: int, rows: dict[int, int]) -> None:
    capacities = divide(size, rows)
    assert set(capacities) == set(rows)
    least = sum(bytes_of(row_bytes, 1) for row_bytes in rows)
    assert sum(bytes_of(row_bytes, capacity) for row_bytes, capacity in capacities.items()) <= max(size, least)
    for row_bytes, capacity in capacities.items():
        assert 1 <= capacity <= max(1, rows[row_bytes] + rows[row_bytes] // SPARE)


def test_with_enough_memory_every_row_fits() -> None:
    rows = {64: 1_000_000, 512: 10_000_000, 4: 3}
    assert all(count >= rows[size] for size, count in divide(1 << 40, rows).items())


def test_tables_without_rows_get_no_cache_of_one_row() -> None:
    driver = SimulatedGpus().driver(0)
    driver.enter_thread()
    tables = [TableSpec("a", 4), TableSpec("b", 8)]
    with pytest.raises(ConfigError, match="none of the 2 tables says how many rows it has") as raised:
        Replica(driver, tables, 1 << 20)
    assert raised.value.field == "hbm_bytes"
    assert not driver.live_bytes.get("device")


def test_tables_without_rows_beside_others_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    driver = SimulatedGpus().driver(0)
    driver.enter_thread()
    replica = Replica(driver, [TableSpec("a", 4, rows=900), TableSpec("b", 8), TableSpec("c", 4)], 1 << 20)
    assert [slab.cache.capacity_rows for slab in replica.slabs] == [900 + 900 // SPARE, 1]
    assert [record.message for record in caplog.records] == [
        "hbm_bytes: the cache for rows of 32 bytes holds 1 row: their tables say they have none"
    ]


def test_a_publisher_waits_for_those_who_are_inside_and_for_nobody_else() -> None:
    turns = Turns()
    inside, outside = turns.new(), turns.new()
    inside.begin()
    done = threading.Event()

    def publish() -> None:
        turns.wait()
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    time.sleep(0.05)
    assert not done.is_set()
    outside.begin()  # This reader begins after the publisher looked.
    inside.end()
    assert done.wait(10)
    thread.join()
    outside.end()


def test_who_comes_out_and_goes_in_again_is_not_waited_for() -> None:
    turns = Turns()
    turn = turns.new()
    turn.begin()
    thread = threading.Thread(target=turns.wait)
    thread.start()
    time.sleep(0.02)
    turn.end()
    turn.begin()
    thread.join(10)
    assert not thread.is_alive()
    turn.end()


def test_a_view_answers_for_its_base_and_its_differences_and_what_was_merged_does_not_matter() -> None:
    overlay = Overlay(3, 0, "snapshot")
    some = Difference(0b1101, 2, (overlay,), entries=5)
    empty = Difference(0b0001, 4, (), entries=0)
    view = View(_NO_REPLICA, 0b0101, (some, empty))
    live = 0b1100

    def chain(mask: int, among: int = live) -> tuple[int, ...] | None:
        found = view.find(mask, among)
        return None if found is None else found[0].chain

    assert chain(0b0101) == ()
    assert chain(0b0100) == ()  # Bit 0 was merged.
    assert chain(0b1101) == (2,)
    assert chain(0b1111) == (2,)
    assert chain(0b0001) == ()
    assert chain(0b1001) is None
    assert chain(0b1001, 0b1111) is None
    assert View(_NO_REPLICA, None, (some,)).find(0b0101, live) is None


def test_lookups_are_counted_by_table_and_once_for_the_policy() -> None:
    import numpy as np

    counts = TierCounts(3)
    counts.add(np.array([10, 20, 30], np.uint64), np.array([1, 2, 3], np.uint64))
    assert counts.waiting([0, 2]) == 0  # The policy of another GPU may count them instead.
    counts.age(np.array([10, 20, 30], np.uint64), np.array([1, 2, 3], np.uint64))
    assert counts.waiting([0, 2]) == 40
    assert counts.passed([0, 2]) == (40, 36)
    assert counts.passed([0, 2]) == (0, 0)
    assert counts.passed([1]) == (20, 18)
    stats = counts.stats(None)
    assert [(table.lookups, table.misses) for table in stats.tables] == [(10, 1), (20, 2), (30, 3)]
    assert stats.rows == 0
