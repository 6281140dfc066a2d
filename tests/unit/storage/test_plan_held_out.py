"""Compares a plan with traffic that it has not seen, and with costs that the lookups do not determine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.plan_accuracy import SHARE, Requests, Version
from storage.errors import InvalidInput
from storage.tiers.budget_report import budget_report, read_report
from storage.tiers.planning.budget import row_cost
from storage.tiers.planning.cost import CostModel, LookupCosts
from storage.tiers.planning.forecast import Forecast, Measured, SlabCurve, StoreForecast
from storage.tiers.planning.plan import make_plan
from storage.tiers.tiered import TieredStore


def test_hit_rates_of_other_budgets_are_those_of_other_traffic(tmp_path: Path) -> None:
    """Uses three tables of two row sizes; a twentieth of all ids is absent, which no budget can change."""
    version = Version(30_000)
    present = int(sum(row_cost(spec) * spec.rows for spec in version.tables) * SHARE)
    with TieredStore.open(tmp_path, version.tables, dram_bytes=present) as store:
        store.load(version)
        requests = Requests(version, store)
        requests.run(25_000)
        known = read_report(budget_report(store))
        assert known.source == "traffic"
        assert len(known.forecast.windows) > 1
        for part in (0.5, 1.0, 2.0):
            shares = known.forecast.split(present * part)
            said = known.forecast.hit_rate_of(shares)
            low, high = known.forecast.hit_range_of(shares)
            store.set_dram_bytes(int(present * part))
            store.wait_filled()
            requests.run(10_000)
            seen, _, _ = requests.run(8_000)
            assert said == pytest.approx(seen, abs=0.03)
            assert low - 0.005 <= seen <= high + 0.005
            assert high - low < 0.08


def costs_of(sizes: list[tuple[int, int]], read_us: float = 6.0, noise: float = 0.0) -> CostModel:
    costs = LookupCosts()
    rng = np.random.default_rng(1)
    for ids, reads in sizes:
        reads_ns = (20_000 + reads * read_us * 1000) * (1 + noise * rng.standard_normal()) if reads else 0
        costs.add(ids, int(5000 + ids * 30 + reads_ns), reads, int(reads_ns), reads)
    model = costs.model()
    assert model is not None
    return model


def spread(lookups: int) -> list[tuple[int, int]]:
    rng = np.random.default_rng(0)
    return [(int(ids), int(ids * 0.2)) for ids in rng.integers(50, 1000, lookups)]


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        (costs_of(spread(40)), "only 40 lookups were timed, 64 are needed"),
        (costs_of([(ids, 0) for ids, _ in spread(200)]), "only 0 lookups read rows"),
        (costs_of([(1000, 200)] * 200), "nearly the same number of rows from SSD, some 200"),
        (costs_of(spread(200), read_us=0.0, noise=0.5), "not clearly longer"),
    ],
)
def test_a_time_that_lookups_do_not_determine_is_not_said(costs: CostModel, words: str) -> None:
    assert words in costs.doubt
    plan = make_plan(known_with(costs), ids=500)
    assert words in plan.doubt
    assert all((row.lookup_ms is None) == (row is not plan.now) for row in plan.rows)
    with pytest.raises(InvalidInput, match="no budget can be named for a time"):
        make_plan(known_with(costs), ids=500, target_ms=1.0)


def test_times_of_lookups_of_other_sizes_need_lookups_of_other_sizes() -> None:
    rng = np.random.default_rng(0)
    costs = costs_of([(500, int(reads)) for reads in rng.integers(10, 200, 300)])
    assert not costs.doubt
    assert not make_plan(known_with(costs), ids=500).doubt
    assert "nearly the same number of ids" in make_plan(known_with(costs), ids=5000).doubt


def test_the_interval_of_a_time_holds_the_truth_and_grows_with_the_noise() -> None:
    quiet, noisy = costs_of(spread(600), noise=0.02), costs_of(spread(600), noise=0.4)
    for rate in (0.5, 0.8, 0.95):
        truth = (5 + 500 * 0.03 + 20 + 500 * (1 - rate) * 6) / 1000
        assert abs(quiet.lookup_ms(500, rate) - truth) <= 1.5 * quiet.error_ms(500, rate) + 1e-3
        assert abs(noisy.lookup_ms(500, rate) - truth) <= 1.5 * noisy.error_ms(500, rate)
        assert noisy.error_ms(500, rate) > 3 * quiet.error_ms(500, rate)


def known_with(costs: CostModel) -> StoreForecast:
    rows = np.arange(5) * 100
    slab = SlabCurve(("t",), 8, 10.0, 400, 1000.0, rows, np.array([0, 0.5, 0.7, 0.9, 1.0]))
    return StoreForecast(Forecast((slab,)), (2000,), costs, Measured(500, 500, 1, 0.7), "traffic")
