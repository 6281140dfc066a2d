"""Curves, splits and cost lines against answers that can be worked out by hand or by trying everything."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from storage.errors import InvalidInput
from storage.tiers.planning.cost import CostModel, LineFit, LookupCosts
from storage.tiers.planning.forecast import Forecast, SlabCurve, curve_of_codes
from storage.tiers.planning.use_codes import uses_of_codes
from trainer.publishing.embedding_layers import frequency_byte


def slab(lookups: float, hits: list[float], *, cost: float = 10.0, step: int = 100) -> SlabCurve:
    rows = np.arange(len(hits)) * step
    return SlabCurve(("t",), 8, cost, int(rows[-1]), lookups, rows, np.array(hits))


def test_a_concave_pair_is_split_as_well_as_any_split() -> None:
    two = Forecast((slab(1000, [0, 0.5, 0.7, 0.8, 0.85]), slab(300, [0, 0.9, 0.95, 0.97, 1.0], cost=20.0)))
    for total in range(0, two.whole_bytes, 500):
        shares = two.split(total)
        assert sum(shares) == pytest.approx(total)
        best = max(two.hit_rate_of((part, total - part)) for part in np.linspace(0, total, 400))
        assert two.hit_rate_of(shares) >= best - 1e-9


def test_a_cliff_is_not_overlooked() -> None:
    # No hits at all until 300 rows are in: a step that looks at the next row alone would never go there.
    cliff = Forecast((slab(1000, [0, 0, 0, 1.0]), slab(100, [0, 0.4, 0.6, 0.7])))
    assert cliff.split(3000)[0] == pytest.approx(3000)
    assert cliff.hit_rate(3000) == pytest.approx(1000 / 1100)


def test_more_memory_never_gives_less_and_all_of_it_gives_all() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        slabs = tuple(
            slab(float(rng.integers(1, 100)), np.sort(rng.random(6) ** 2 * (np.arange(6) > 0)).tolist())
            for _ in range(3)
        )
        forecast = Forecast(slabs)
        rates = [forecast.hit_rate(total) for total in np.linspace(0, forecast.whole_bytes, 50)]
        hull = [rate for rate in rates if rate >= 0]
        assert rates[-1] == pytest.approx(
            sum(s.lookups * s.curve_hits[-1] for s in slabs) / sum(s.lookups for s in slabs)
        )
        assert len(hull) == 50
        for piece, total in itertools.product(forecast.split(forecast.whole_bytes / 2), [forecast.whole_bytes]):
            assert 0 <= piece <= total


def test_bytes_that_bring_no_hit_go_by_need() -> None:
    flat = Forecast((slab(0, [0, 0, 0]), slab(0, [0, 0, 0], cost=30.0)))
    assert flat.split(4000) == pytest.approx([1000, 3000])
    assert flat.hit_rate(4000) == 0.0


def test_the_codes_are_those_of_the_trainer() -> None:
    counts = np.unique(np.concatenate([np.arange(1000), np.geomspace(1000, 500_000, 400).astype(int)])).astype(
        np.uint32
    )
    uses = uses_of_codes()[frequency_byte(counts)]
    assert np.array_equal(uses[:32], np.arange(32))
    assert (uses <= counts).all()
    assert (uses > counts * (1 - 1 / 16) - 1).all()


def test_a_curve_of_published_frequencies_judges_each_use_without_itself() -> None:
    codes = np.array([9, 5, 5, 1, 1, 1])
    rows, hits, most, total = curve_of_codes(np.bincount(codes, minlength=256))
    assert (rows.tolist(), total) == ([0, 1, 3, 6], 22)
    # Without its one use a row would not be there: 19 uses find a row. One of the nine finds its row with eight uses,
    # which is not among the rows with nine.
    assert hits.tolist() == pytest.approx([0, 0, 9 / 19, 1])
    assert most.tolist() == pytest.approx([0, 9 / 19, 1, 1])
    rows, hits, _, total = curve_of_codes(np.zeros(256, np.int64))
    assert (rows.tolist(), hits.tolist(), total) == ([0], [0.0], 0.0)


@pytest.mark.parametrize(("uses", "rows"), [(20_000, 20_000), (100_000, 20_000), (400_000, 5_000)])
def test_published_counts_predict_traffic_that_did_not_make_them(uses: int, rows: int) -> None:
    rng = np.random.default_rng(3)
    weights = np.arange(1, rows + 1) ** -0.9
    train, test = (rng.choice(rows, uses, p=weights / weights.sum()) for _ in range(2))
    counts = np.bincount(train, minlength=rows)
    held = counts > 0  # a row is published when it was seen
    at, hits, most, _ = curve_of_codes(np.bincount(frequency_byte(counts[held].astype(np.uint32)), minlength=256))
    found = held[test]
    # Rows of one count are alike: the cache holds any of them.
    order = np.lexsort((rng.random(rows), -counts))
    place = np.empty(rows, np.int64)
    place[order] = np.arange(rows)
    for share in (0.05, 0.1, 0.2, 0.4):
        size = int(held.sum() * share)
        truth = float((place[test[found]] < size).mean())
        assert np.interp(size, at, most) > truth - 0.002
        assert float(np.interp(size, at, hits)) == pytest.approx(truth, abs=0.02)


def test_the_smallest_budget_meets_the_target_and_a_little_less_does_not() -> None:
    forecast = Forecast((slab(1000, [0, 0.5, 0.7, 0.8, 0.9, 1.0]),))
    costs = CostModel(overhead_us=100, dram_us=0.1, latency_us=100, read_us=10)
    least = forecast.smallest(4.0, 1000, costs)
    assert least is not None
    assert costs.lookup_ms(1000, forecast.hit_rate(least)) <= 4.0
    assert costs.lookup_ms(1000, forecast.hit_rate(least * 0.995)) > 4.0
    assert forecast.smallest(0.1, 1000, costs) is None
    with pytest.raises(InvalidInput, match="target_ms"):
        forecast.smallest(0, 1000, costs)


def test_lines_come_back_and_stay_above_zero() -> None:
    fit = LineFit()
    for x in range(1, 20_000):
        fit.add(x % 100, 7 + 3 * (x % 100))
    assert fit.line() == pytest.approx((7, 3))
    other = LineFit()
    other.merge(fit)
    assert other.line() == pytest.approx((7, 3))
    same = LineFit()
    for _ in range(5):
        same.add(10, 50)
    assert same.line() == pytest.approx((0, 5))
    assert LineFit().line() == (0, 0)
    down = LineFit()
    for x in range(1, 10):
        down.add(x, 100 - x)
    assert down.line() == pytest.approx((95, 0))
    steep = LineFit()
    for x in range(1, 10):
        steep.add(x, x * x)
    intercept, slope = steep.line()
    assert intercept == 0
    assert slope > 0


def test_costs_are_split_into_lookups_and_reads() -> None:
    costs = LookupCosts()
    assert costs.model() is None
    rng = np.random.default_rng(0)
    for _ in range(500):
        ids, reads = int(rng.integers(1, 1000)), int(rng.integers(0, 50))
        reads_ns = (20_000 + reads * 6000) if reads else 0
        costs.add(ids, 5000 + ids * 30 + reads_ns, reads, reads_ns, reads * 2)
    model = costs.model()
    assert model is not None
    assert model.overhead_us == pytest.approx(5)
    assert model.dram_us == pytest.approx(0.03)
    assert model.latency_us == pytest.approx(20)
    assert model.read_us == pytest.approx(6)
    assert model.reads_per_miss == pytest.approx(0.5)
    assert model.lookup_ms(1000, 0.9) == pytest.approx((5 + 30 + 20 + 50 * 6) / 1000)
