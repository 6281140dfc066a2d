"""A plan for people: what a range of DRAM budgets would give, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from storage.errors import InvalidInput
from storage.tiers.budget_report import StoreForecast

_BESIDE_NOW = (0.25, 0.5, 1.0, 2.0, 4.0)
_OF_WHOLE = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class PlanRow:
    """One budget. share: of what all rows would take. lookup_ms: None when no costs are known."""

    dram_bytes: int
    share: float
    hit_rate: float
    lookup_ms: float | None
    note: str = ""


@dataclass(frozen=True)
class Plan:
    """rows: budgets ascending. twice: what twice the present budget would give. smallest: for the target, or None."""

    rows: tuple[PlanRow, ...]
    ids: int
    whole_bytes: int
    now: PlanRow | None
    twice: PlanRow | None
    target_ms: float | None
    smallest: PlanRow | None


def make_plan(known: StoreForecast, *, ids: int, budgets: Iterable[int] = (), target_ms: float | None = None) -> Plan:
    """ids: of a lookup. budgets: that are looked at; none: a range. Raises InvalidInput when nothing is known yet."""
    forecast = known.forecast
    if not any(len(slab.curve_rows) for slab in forecast.slabs):
        raise InvalidInput("nothing is known of the traffic yet: send requests, then ask again")
    whole = forecast.whole_bytes
    present = sum(known.now)

    def row(dram_bytes: float, note: str = "", hit_rate: float | None = None) -> PlanRow:
        rate = forecast.hit_rate(dram_bytes) if hit_rate is None else hit_rate
        ms = None if known.costs is None else known.costs.lookup_ms(ids, rate)
        return PlanRow(int(dram_bytes), min(1.0, dram_bytes / whole) if whole else 1.0, rate, ms, note)

    now = row(present, "now", forecast.hit_rate_of(known.now)) if present else None
    chosen = list(budgets)
    if not chosen:
        chosen = [int(present * part) for part in _BESIDE_NOW] if present else [int(whole * part) for part in _OF_WHOLE]
        chosen = [each for each in chosen if 0 < each < whole] + [whole]
    rows = {each: row(each, "all rows" if each == whole else "") for each in chosen}
    if now is not None:
        rows[present] = now
    smallest: PlanRow | None = None
    if target_ms is not None:
        if known.costs is None:
            raise InvalidInput("no lookup was measured yet, so no budget can be named for a time: send requests first")
        found = forecast.smallest(target_ms, ids, known.costs)
        smallest = None if found is None else row(found, "target")
    twice = None if now is None else row(min(2 * present, whole), "twice")
    return Plan(tuple(rows[each] for each in sorted(rows)), ids, whole, now, twice, target_ms, smallest)
