"""Makes a plan for operators: what a range of DRAM budgets would give, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from storage.errors import InvalidInput
from storage.tiers.planning.cost import CostModel
from storage.tiers.planning.forecast import StoreForecast

_NOTHING_KNOWN = {
    "traffic": "too little is known of the traffic: a curve needs lookups worth 16 times the rows that fit, and at "
    "least 65,536 ids, since the start; send requests, then ask again",
    "published": "the rows have no use counts, and without a DRAM budget no lookups are sampled; give the model a "
    "budget (`emberline budget MODEL --dram-bytes ...`), send requests, then ask again",
}
_BESIDE_NOW = (0.25, 0.5, 1.0, 2.0, 4.0)
# Lookups whose numbers of ids differ from the mean by less than this share count as the same size.
_SAME_IDS = 0.1
_OF_WHOLE = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class PlanRow:
    """The forecast of one budget. Similar traffic is expected to give values between the low and the high ones."""

    dram_bytes: int
    #: The share of the bytes that all rows would take.
    share: float
    hit_rate: float
    hit_low: float
    hit_high: float
    #: None when it cannot be predicted; `Plan.doubt` says why.
    lookup_ms: float | None
    ms_low: float | None = None
    ms_high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Plan:
    """The forecasts of several budgets."""

    #: One row for each budget, ascending.
    rows: tuple[PlanRow, ...]
    #: The number of ids of the lookup whose time is forecast.
    ids: int
    #: The bytes that all rows would take.
    whole_bytes: int
    #: The present budget, or None when there is none.
    now: PlanRow | None
    #: Twice the present budget.
    twice: PlanRow | None
    target_ms: float | None
    #: The smallest budget that reaches target_ms, or None.
    smallest: PlanRow | None
    #: The reason why times of budgets other than the present one cannot be predicted, and what would help; "" when they
    #: can.
    doubt: str = ""


def make_plan(known: StoreForecast, *, ids: int, budgets: Iterable[int] = (), target_ms: float | None = None) -> Plan:
    """Makes a plan for lookups of so many ids. budgets: those to forecast; when empty, a range of them is chosen.

    target_ms: the time for which to find the smallest budget. Raises InvalidInput when nothing is known yet.
    """
    forecast = known.forecast
    if not any(len(slab.curve_rows) for slab in forecast.slabs):
        raise InvalidInput(_NOTHING_KNOWN[known.source])
    whole = forecast.whole_bytes
    present = sum(known.now)

    doubt = time_doubt(known, ids)

    def row(dram_bytes: float, note: str = "", present_shares: Sequence[float] | None = None) -> PlanRow:
        shares = forecast.split(dram_bytes) if present_shares is None else present_shares
        rate = forecast.hit_rate_of(shares)
        low, high = forecast.hit_range_of(shares)
        share = min(1.0, dram_bytes / whole) if whole else 1.0
        times: tuple[float | None, float | None, float | None] = None, None, None
        if known.costs is not None and (not doubt or present_shares is not None):
            times = _times(known.costs, ids, rate, low, high)
        return PlanRow(int(dram_bytes), share, rate, low, high, *times, note)

    now = row(present, "now", known.now) if present else None
    chosen = list(budgets)
    if not chosen:
        chosen = [int(present * part) for part in _BESIDE_NOW] if present else [int(whole * part) for part in _OF_WHOLE]
        chosen = [each for each in chosen if 0 < each < whole] + [whole]
    rows = {each: row(each, "all rows" if each == whole else "") for each in chosen}
    if now is not None:
        rows[present] = now
    smallest: PlanRow | None = None
    if target_ms is not None:
        if known.costs is None or doubt:
            raise InvalidInput(f"no budget can be named for a time: {doubt}", field="target_ms")
        found = forecast.smallest(target_ms, ids, known.costs)
        smallest = None if found is None else row(found, "target")
    twice = None if now is None else row(min(2 * present, whole), "twice")
    return Plan(tuple(rows[each] for each in sorted(rows)), ids, whole, now, twice, target_ms, smallest, doubt)


def time_doubt(known: StoreForecast, ids: float) -> str:
    """Returns why the time of such a lookup at other hit rates cannot be predicted, and what would help; else ""."""
    costs = known.costs
    if costs is None:
        return "no lookup was timed yet; send requests, then ask again"
    if costs.doubt:
        remedy = (
            "send requests of different sizes, or plan from the folder of the published version, for which reads are "
            "measured on this machine's disk"
            if known.measured.lookups
            else "other work disturbs the measurement: ask again when the machine is quieter"
        )
        return f"{costs.doubt}, so what a read costs cannot be told; {remedy}"
    if costs.ids_doubt and abs(ids - known.measured.ids) > _SAME_IDS * known.measured.ids:
        return (
            f"{costs.ids_doubt}, some {known.measured.ids:,.0f}, so nothing can be told of {ids:,}; send requests of "
            "different sizes, or leave out --ids"
        )
    return ""


def _times(costs: CostModel, ids: int, rate: float, low: float, high: float) -> tuple[float, float, float]:
    """Returns the milliseconds of a lookup, and the low and the high end of the expected range."""
    least = costs.lookup_ms(ids, high) - costs.error_ms(ids, high)
    most = costs.lookup_ms(ids, low) + costs.error_ms(ids, low)
    return costs.lookup_ms(ids, rate), max(0.0, least), most
