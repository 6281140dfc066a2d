"""What DRAM budgets would give for a published version, by the use counts in its shards: a cache that always holds the
most used rows. Traffic that is not what the trainer saw, or that moves, gives less.
"""

from __future__ import annotations

import numpy as np

from storage.errors import InvalidInput
from storage.tiers.budget import INDEX_BYTES_PER_ROW
from storage.tiers.budget_report import Measured, StoreForecast
from storage.tiers.cost import CostModel
from storage.tiers.forecast import Forecast, SlabCurve, curve_of_codes
from storage.tiers.source import TableSource


def version_forecast(version: TableSource, costs: CostModel | None) -> StoreForecast:
    """Reads all shards of a version. Raises InvalidInput for one without any use count, and what the version raises."""
    histograms: dict[int, np.ndarray] = {}
    members: dict[int, list[str]] = {}
    rows: dict[int, int] = {}
    for spec in version.tables:
        size = spec.row_bytes
        members.setdefault(size, []).append(spec.name)
        rows[size] = rows.get(size, 0) + spec.rows
        histogram = histograms.setdefault(size, np.zeros(256, np.int64))
        for shard in version.shards(spec.name):
            histogram += np.bincount(shard.freq, minlength=256)
    slabs: list[SlabCurve] = []
    for size in sorted(members):
        curve_rows, curve_hits, uses = curve_of_codes(histograms[size])
        cost = size + INDEX_BYTES_PER_ROW
        slabs.append(SlabCurve(tuple(members[size]), size, cost, rows[size], uses, curve_rows, curve_hits))
    if not any(slab.lookups for slab in slabs):
        raise InvalidInput(f"{version.path}: no row has a use count, so nothing can be said of hit rates")
    return StoreForecast(Forecast(tuple(slabs)), tuple(0 for _ in slabs), costs, Measured(0, 0, 0, 0))
