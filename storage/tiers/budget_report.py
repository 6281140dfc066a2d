"""What a store says about its DRAM budget, as JSON values: sizes, curves, costs; and the forecast that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import InvalidInput
from storage.tiers.cost import CostModel
from storage.tiers.forecast import Forecast, SlabCurve

if TYPE_CHECKING:
    from storage.tiers.tiered import TieredStore

# Points of a curve that travel.
_MAX_POINTS = 128


@dataclass(frozen=True)
class Measured:
    """What lookups were: how many, ids and milliseconds of one in the mean, share of the rows that DRAM had."""

    lookups: float
    ids: float
    ms: float
    hit_rate: float


@dataclass(frozen=True)
class StoreForecast:
    """now: bytes of each slab. costs: None before the first lookup."""

    forecast: Forecast
    now: tuple[int, ...]
    costs: CostModel | None
    measured: Measured


def budget_report(store: TieredStore) -> dict[str, Any]:
    """Of one store. slabs: one for each row size, none when it has no budget."""
    stats = store.stats()
    costs = store.costs()
    forecast = store.forecast()
    model = costs.model()
    found = stats.hits["dram"] + stats.hits["ssd"]
    return {
        "dram_bytes": store.dram_bytes,
        "used_bytes": stats.bytes["dram"],
        "rows": {tier: stats.rows[tier] for tier in ("dram", "ssd")},
        "slabs": []
        if forecast is None
        else [_slab(slab, dram_bytes) for slab, dram_bytes in zip(forecast.slabs, store.slab_bytes(), strict=True)],
        "costs": None if model is None else asdict(model),
        "measured": {
            "lookups": costs.lookups.count,
            "ids": costs.mean_ids(),
            "ms": costs.mean_ms(),
            "hit_rate": stats.hits["dram"] / found if found else 0.0,
        },
    }


def read_report(content: Mapping[str, Any]) -> StoreForecast:
    """The forecast of a `budget_report`. Raises InvalidInput for what is none."""
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
            )
            for slab in content["slabs"]
        )
        costs = content["costs"]
        return StoreForecast(
            Forecast(slabs),
            tuple(int(slab["dram_bytes"]) for slab in content["slabs"]),
            None if costs is None else CostModel(**costs),
            Measured(**content["measured"]),
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
        "curve": {"rows": slab.curve_rows[kept].tolist(), "hit_rate": slab.curve_hits[kept].tolist()},
    }
