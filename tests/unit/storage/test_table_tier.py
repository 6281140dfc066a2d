"""The DRAM tier: rows go into the native table and come back, errors are in the project's tree."""

from __future__ import annotations

import numpy as np
import pytest

from storage.errors import ConfigError, StoreError
from storage.tiers.dram import DramTier

IDS = np.array([3, -1, 9], np.int64)
ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def test_rows_go_in_change_and_leave() -> None:
    tier = DramTier(2)
    tier.reserve(100)
    tier.insert_or_assign(IDS, ROWS)
    rows, found = tier.find(np.array([9, 4]))
    assert rows.tolist() == [[4, 5], [0, 0]]
    assert found.tolist() == [1, 0]
    assert tier.assign(np.array([9, 4]), ROWS[:2]) == 1
    assert tier.erase(np.array([3, 4])) == 1
    cursor, ids, exported, freq = tier.export_batch(0, 10)
    assert cursor == -1
    assert {i: row.tolist() for i, row in zip(ids.tolist(), exported, strict=True)} == {9: [0, 1], -1: [2, 3]}
    assert len(freq) == tier.size() == 2
    assert tier.memory_bytes() > 0


def test_a_full_tier_is_a_store_error_that_says_what_to_do() -> None:
    tier = DramTier(2, capacity_rows=2)
    with pytest.raises(StoreError, match="capacity_rows is 2; erase rows"):
        tier.insert_or_assign(IDS, ROWS)
    assert tier.size() == 2
    assert tier.insert_and_evict(IDS, ROWS) <= 1


@pytest.mark.parametrize(("dim", "capacity", "field"), [(0, 0, "dim"), (-1, 0, "dim"), (4, 2**32, "capacity_rows")])
def test_impossible_sizes_are_config_errors(dim: int, capacity: int, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DramTier(dim, capacity_rows=capacity)
    assert caught.value.field == field
