"""Reports a store's DRAM budget as JSON values (sizes, curves, costs), and makes a forecast of such a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import InvalidInput
from storage.tiers.planning.cost import CostModel
from storage.tiers.planning.forecast import Forecast, Measured, SlabCurve, StoreForecast
from storage.tiers.planning.version_forecast import counts_forecast

if TYPE_CHECKING:
    from storage.tiers.tiered import TieredStore

# The most points of a curve that a report contains.
_MAX_POINTS = 128


def budget_report(store: TieredStore) -> dict[str, Any]:
    """Returns the report of one store.

    `slabs` has one entry for each row size. `used_bytes` count against the budget; `fixed_bytes` do not: the caches
    take them whatever the budget is. The hit rate in `measured` is that of recent lookups, since the budget was
    changed.
    """
    stats = store.stats()
    costs = store.costs()
    cache, recent = store.dram_of_late()
    forecast, source = store.forecast(), "traffic"
    now = store.slab_bytes()
    if forecast is None:
        # When every row is held, no lookup is sampled, and only the counts that came with the rows are known.
        forecast = counts_forecast(store.tables, lambda table: (shard.freq for shard in cache.exported(table)))
        source, now = "published", [slab.whole_bytes for slab in forecast.slabs]
    model = costs.model()
    dram, ssd = recent.counts()[:, :2].sum(0).tolist()
    fixed = cache.fixed_bytes()
    return {
        "dram_bytes": store.dram_bytes,
        "used_bytes": max(0, stats.bytes["dram"] - fixed),
        "fixed_bytes": fixed,
        "rows": {tier: stats.rows[tier] for tier in ("dram", "ssd")},
        "source": source,
        "slabs": [_slab(slab, dram_bytes) for slab, dram_bytes in zip(forecast.slabs, now, strict=True)],
        "windows": list(forecast.windows),
        "costs": None if model is None else asdict(model),
        "measured": {
            "lookups": costs.count,
            "ids": costs.mean_ids(),
            "ms": costs.mean_ms(),
            "hit_rate": dram / (dram + ssd) if dram + ssd else 0.0,
        },
    }


def read_report(content: Mapping[str, Any]) -> StoreForecast:
    """Makes the forecast of a `budget_report`. Raises InvalidInput for other contents."""
    try:
        slabs = tuple(
            SlabCurve(
                tuple(slab["tables"]),
                int(slab["row_bytes"]),
                float(slab["row_cost"]),
                int(slab["rows"]),
                float(slab["lookups"]),
                np.array(slab["curve"]["rows"], np.int64),
                np.array(slab["curve"]["hit_rate"], np.float64),
                np.array(slab["curve"]["parts"], np.float64),
                None if slab["curve"]["most"] is None else np.array(slab["curve"]["most"], np.float64),
            )
            for slab in content["slabs"]
        )
        costs = content["costs"]
        if costs is not None:
            costs = CostModel(**{**costs, "without": tuple(tuple(each) for each in costs["without"])})
        return StoreForecast(
            Forecast(slabs, tuple(content["windows"])),
            tuple(int(slab["dram_bytes"]) for slab in content["slabs"]),
            costs,
            Measured(**content["measured"]),
            content["source"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"not a report of a DRAM budget: {error}") from error


def _slab(slab: SlabCurve, dram_bytes: int) -> dict[str, Any]:
    count = len(slab.curve_rows)
    kept = np.unique(np.linspace(0, count - 1, min(count, _MAX_POINTS)).astype(int)) if count else np.empty(0, int)
    return {
        "tables": list(slab.tables),
        "row_bytes": slab.row_bytes,
        "row_cost": slab.row_cost,
        "rows": slab.rows,
        "dram_bytes": dram_bytes,
        "lookups": slab.lookups,
        "curve": {
            "rows": slab.curve_rows[kept].tolist(),
            "hit_rate": slab.curve_hits[kept].tolist(),
            "parts": [part[kept].tolist() for part in slab.parts],
            "most": None if slab.most_hits is None else slab.most_hits[kept].tolist(),
        },
    }
