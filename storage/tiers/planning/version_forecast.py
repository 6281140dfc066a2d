"""Forecasts what DRAM budgets would give for a published version, by the use counts in its shards.

The cache is assumed to hold the rows that were used most in training, judged by uses that did not select them. That is
correct as far as requests ask for ids as the training data did; traffic that differs, or that changes, gives fewer
hits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from storage.errors import InvalidInput
from storage.specs import TableSpec
from storage.tiers.planning.budget import INDEX_BYTES_PER_ROW
from storage.tiers.planning.cost import CostModel
from storage.tiers.planning.forecast import Forecast, Measured, SlabCurve, StoreForecast, curve_of_codes
from storage.tiers.source import TableSource


def version_forecast(version: TableSource, costs: CostModel | None) -> StoreForecast:
    """Makes the forecast of a version by reading all its shards.

    Raises InvalidInput for a version without any use count, and whatever the version raises.
    """
    forecast = counts_forecast(
        version.tables, lambda index: (shard.freq for shard in version.shards(version.tables[index].name))
    )
    if not any(slab.lookups for slab in forecast.slabs):
        raise InvalidInput(f"{version.path}: no row has a use count, so nothing can be said of hit rates")
    return StoreForecast(forecast, tuple(0 for _ in forecast.slabs), costs, Measured(0, 0, 0, 0))


def counts_forecast(tables: Sequence[TableSpec], counts: Callable[[int], Iterable[np.ndarray]]) -> Forecast:
    """Makes the forecast of tables by their use counts.

    counts: returns the logarithmic use counts of a table's rows, by the table's index, as (n,) uint8 arrays.
    """
    histograms: dict[int, np.ndarray] = {}
    members: dict[int, list[str]] = {}
    for index, spec in enumerate(tables):
        members.setdefault(spec.row_bytes, []).append(spec.name)
        histogram = histograms.setdefault(spec.row_bytes, np.zeros(256, np.int64))
        for codes in counts(index):
            histogram += np.bincount(codes, minlength=256)
    slabs: list[SlabCurve] = []
    for size in sorted(members):
        histogram = histograms[size]
        rows, hits, most, uses = curve_of_codes(histogram)
        cost, none = size + INDEX_BYTES_PER_ROW, np.empty((0, 0))
        slabs.append(SlabCurve(tuple(members[size]), size, cost, int(histogram.sum()), uses, rows, hits, none, most))
    return Forecast(tuple(slabs))
