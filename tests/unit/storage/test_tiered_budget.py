"""How a DRAM budget becomes rows of tables."""

from __future__ import annotations

import pytest

from storage.errors import ConfigError
from storage.specs import TableSpec
from storage.tiers.budget import row_cost, split_budget


def test_a_budget_is_split_by_bytes() -> None:
    tables = [TableSpec("a", 4, rows=1000), TableSpec("b", 64, rows=1000), TableSpec("c", 4, rows=0)]
    whole = sum(spec.rows * row_cost(spec) for spec in tables)
    assert split_budget(tables, None) == [None] * 3
    assert split_budget(tables, whole) == [None] * 3
    tenth = split_budget(tables, whole // 10)
    assert tenth == [99, 99, 1] or tenth == [100, 100, 1]
    assert split_budget(tables, 0) == [1, 1, 1]
    with pytest.raises(ConfigError):
        split_budget(tables, -1)


@pytest.mark.parametrize("rows", [2_000, 50_000])
def test_a_full_table_stays_within_its_share(rows: int) -> None:
    import numpy as np

    from storage._table import Table

    spec = TableSpec("a", 16, rows=1_000_000)
    table = Table(spec.dim, capacity_rows=rows)
    for start in range(0, rows * 2, 1000):
        table.insert_and_evict(np.arange(start, start + 1000), np.zeros((1000, spec.dim), np.float32))
    assert table.size() >= rows * 0.9
    # The tenth and the pages are the slack that the design allows.
    assert table.memory_bytes() <= rows * row_cost(spec) * 1.1 + (4 << 20)
