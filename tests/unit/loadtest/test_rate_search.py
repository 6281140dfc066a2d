"""The search finds the highest rate under a bound, for servers whose latency is known, and says where there is none."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from loadtest.histogram import Histogram
from loadtest.search import FEWEST_PIECES, MOST_PIECES, MOST_STEPS, Found, Step, find_rate, p99_of

SERVICE_MS = 1.0


def queue_p99(rate: float, limit: float) -> float:
    """Returns the p99 of a queue with exponential service times, which grows without bound at `limit` a second."""
    return 4.6 * SERVICE_MS / (1 - rate / limit) if rate < limit else 1e6


def step(
    rate: float, seconds: float, p99_ms: float, bound_ms: float, purpose: str, latency: Histogram | None = None
) -> Step:
    """Returns a measurement with this p99."""
    if latency is None:
        latency = Histogram()
        latency.add(p99_ms / 2, 980)
        latency.add(p99_ms, 20)
    why = "" if p99_ms <= bound_ms else f"p99 {p99_ms:.2f} ms"
    return Step(rate, seconds, p99_ms, why, purpose, latency=latency)


def search(bound_ms: float, limit: float, first: float = 100.0, disturbed: tuple[int, ...] = ()) -> Found:
    """Searches on such a queue. disturbed: numbers of measurements whose p99 is half as large again."""
    found, numbers = Found(bound_ms), itertools.count()

    def measure(rate: float, seconds: float, purpose: str) -> Step:
        p99 = queue_p99(rate, limit) * (1.5 if next(numbers) in disturbed else 1.0)
        return step(rate, seconds, p99, bound_ms, purpose)

    find_rate(found, measure, first=first, step_s=5.0)
    return found


@pytest.mark.parametrize("limit", [37.0, 640.0, 20_000.0])
@pytest.mark.parametrize("first", [1.0, 100.0, 50_000.0])
def test_the_highest_rate_under_the_bound_is_found(limit: float, first: float) -> None:
    found = search(10.0, limit, first)
    best = limit * (1 - 4.6 * SERVICE_MS / 10.0)
    assert found.rate is not None
    assert 0.95 * best <= found.rate <= best
    assert found.p99_ms <= 10.0
    assert found.p99_error_ms == pytest.approx(0.0)
    confirmed = [each for each in found.steps if each.purpose == "confirm"]
    assert [each.seconds for each in confirmed] == [10.0] * FEWEST_PIECES
    assert found.steps[-1] is confirmed[-1]
    assert len(found.steps) < MOST_STEPS


def test_a_disturbed_measurement_is_repeated() -> None:
    calm = search(10.0, 640.0)
    # The third measurement is that of 400/s, half of what the bound allows without the disturbance.
    assert search(10.0, 640.0, disturbed=(1,)).rate == calm.rate


def test_a_rate_that_is_not_confirmed_is_lowered() -> None:
    calm = search(10.0, 640.0)
    first = len(calm.steps) - FEWEST_PIECES
    # Two that are over the bound end each confirmation.
    lowered = search(10.0, 640.0, disturbed=(first, first + 1, first + 2, first + 3))
    assert calm.rate is not None
    assert lowered.rate == pytest.approx(calm.rate * 0.9)


def held(p99_by_share: dict[float, tuple[float, float]], hold_s: float = 300.0) -> Found:
    """Searches on the queue, and holds. p99_by_share: p99 and its error of a hold, by the share of the best rate."""
    best = search(10.0, 640.0).rate
    assert best is not None
    found = Found(10.0)

    def measure(rate: float, seconds: float, purpose: str) -> Step:
        if purpose != "hold":
            return step(rate, seconds, queue_p99(rate, 640.0), 10.0, purpose)
        assert seconds == hold_s
        p99, error = p99_by_share[round(rate / best, 2)]
        return replace(step(rate, seconds, p99, 10.0, purpose), p99_error_ms=error)

    find_rate(found, measure, first=100.0, step_s=5.0, hold_s=hold_s)
    return found


def test_a_rate_that_is_held_under_the_bound_and_steady_is_what_was_found() -> None:
    calm = search(10.0, 640.0)
    assert calm.rate is not None
    found = held({1.0: (9.5, 0.3)})
    assert (found.rate, found.p99_ms, found.p99_error_ms) == (calm.rate, 9.5, 0.3)
    assert (found.held_s, found.is_steady) == (300.0, True)
    # A p99 of a short hold has no error.
    found = held({1.0: (9.5, math.nan)}, 20.0)
    assert (found.rate, found.held_s, found.is_steady) == (calm.rate, 20.0, None)
    lowered = held({1.0: (20.0, 1.0), 0.95: (9.9, 1.5), 0.9: (6.0, 0.2)})
    assert lowered.rate == pytest.approx(0.9 * calm.rate)
    assert (lowered.p99_ms, lowered.is_steady) == (6.0, True)
    assert [each.why for each in lowered.steps if each.purpose == "hold"] == [
        "p99 20.00 ms",
        "p99 9.90 ms ± 1.50, which comes and goes",
        "",
    ]
    # A rate below one that was confirmed is not confirmed again.
    assert sum(each.purpose == "confirm" for each in lowered.steps) == FEWEST_PIECES


def test_where_no_rate_is_steady_the_highest_that_stayed_under_the_bound_is_found() -> None:
    calm = search(10.0, 640.0)
    assert calm.rate is not None
    found = held({1.0: (20.0, 1.0), **dict.fromkeys((0.95, 0.9, 0.8, 0.65, 0.5), (6.0, 2.0))})
    assert found.rate == pytest.approx(0.95 * calm.rate)
    assert (found.p99_ms, found.p99_error_ms, found.is_steady, found.held_s) == (6.0, 2.0, False, 300.0)
    assert found.steps[found.place].rate == found.rate
    assert found.place < len(found.steps) - 1


def test_an_unsteady_rate_does_not_count_where_a_lower_one_is_not_held() -> None:
    calm = search(10.0, 640.0)
    assert calm.rate is not None
    found = held({1.0: (9.0, 2.0), 0.95: (9.0, 2.0), 0.9: (20.0, 1.0), 0.8: (4.0, 0.1)})
    assert found.rate == pytest.approx(0.8 * calm.rate)
    assert (found.p99_ms, found.is_steady) == (4.0, True)


def test_a_lower_hold_that_cannot_be_compared_replaces_no_unsteady_one() -> None:
    calm = search(10.0, 640.0)
    found = held({1.0: (9.0, 2.0), 0.95: (9.0, math.nan)})
    assert (found.rate, found.p99_ms, found.is_steady) == (calm.rate, 9.0, False)


def test_a_rate_that_is_held_nowhere_is_said() -> None:
    found = held(dict.fromkeys((1.0, 0.95, 0.9, 0.8, 0.65, 0.5, 0.35, 0.2, 0.1), (20.0, 1.0)))
    assert (found.rate, found.held_s) == (None, 0.0)
    assert math.isnan(found.p99_ms)
    assert "/s was not held: p99 20.00 ms" in found.why


def test_an_interrupted_hold_leaves_what_was_confirmed() -> None:
    calm, found = search(10.0, 640.0), Found(10.0)

    def measure(rate: float, seconds: float, purpose: str) -> Step:
        if purpose == "hold":
            raise KeyboardInterrupt
        return step(rate, seconds, queue_p99(rate, 640.0), 10.0, purpose)

    with pytest.raises(KeyboardInterrupt):
        find_rate(found, measure, first=100.0, step_s=5.0, hold_s=300.0)
    assert (found.rate, found.p99_ms, found.held_s) == (calm.rate, calm.p99_ms, 0.0)


@pytest.mark.parametrize(("first", "rate_is_known"), [((9.0, 2.0), True), ((39.94, 1.0), False)])
def test_a_later_hold_that_is_interrupted_leaves_what_the_first_has_shown(
    first: tuple[float, float], rate_is_known: bool
) -> None:
    calm, found, holds = search(10.0, 640.0), Found(10.0), itertools.count()

    def measure(rate: float, seconds: float, purpose: str) -> Step:
        if purpose != "hold":
            return step(rate, seconds, queue_p99(rate, 640.0), 10.0, purpose)
        if next(holds):
            raise KeyboardInterrupt
        return replace(step(rate, seconds, first[0], 10.0, purpose), p99_error_ms=first[1])

    with pytest.raises(KeyboardInterrupt):
        find_rate(found, measure, first=100.0, step_s=5.0, hold_s=300.0)
    if rate_is_known:
        assert (found.rate, found.p99_ms, found.is_steady, found.held_s) == (calm.rate, 9.0, False, 300.0)
    else:
        assert found.rate is None
        assert found.why == f"{calm.rate:.4g}/s was not held: p99 39.94 ms"


def test_a_bound_below_every_latency_is_said() -> None:
    found = search(4.0, 640.0)
    assert found.rate is None
    assert "not even 1.56/s stay under the bound: p99" in found.why


def test_a_search_without_an_end_stops() -> None:
    found = search(10.0, 1e12)
    assert found.rate is None
    assert "even 200,000/s stay under the bound" in found.why
    never = search(10.0, 640.0, disturbed=tuple(range(8, 1000)))
    assert len(never.steps) <= MOST_STEPS + MOST_PIECES


@pytest.mark.parametrize(("spread", "within"), [(0.05, 20), (0.4, 15)])
def test_what_was_found_is_what_is_held(spread: float, within: int) -> None:
    """The latencies of a second differ from those of the next, by a factor whose logarithm has this deviation."""
    shares = [-math.log(1 - (place + 0.5) / 200) / 4.6 for place in range(200)]
    differences, lengths = [], []
    for seed in range(20):
        rng = random.Random(seed)

        def measure(rate: float, seconds: float, purpose: str, rng: random.Random = rng) -> Step:
            latency = Histogram()
            for _ in range(round(seconds)):
                p99 = queue_p99(rate, 640.0) * math.exp(rng.gauss(0.0, spread))
                for share in shares:
                    latency.add(p99 * share)
            return step(rate, seconds, latency.quantile(0.99), 10.0, purpose, latency)

        found = Found(10.0)
        find_rate(found, measure, first=200.0, step_s=5.0)
        assert found.rate is not None
        held = measure(found.rate, 300.0, "hold")
        differences.append(held.p99_ms / found.p99_ms - 1)
        lengths.append(sum(each.purpose == "confirm" and each.rate == found.rate for each in found.steps))
    # It is longer where the p99 comes and goes.
    assert max(lengths) == FEWEST_PIECES if spread < 0.1 else max(lengths) > 2 * FEWEST_PIECES
    assert abs(median(differences)) < 0.05
    assert sum(abs(each) <= 0.1 for each in differences) >= within


@pytest.mark.parametrize(
    "trouble",
    [
        {"failed": 0.02, "why": "2.00% of the requests failed"},
        {"is_kept_up": False, "why": "90 answers a second"},
        {"latency": Histogram(), "p99_ms": math.nan, "why": "no request was answered"},
    ],
)
def test_a_rate_whose_requests_are_not_answered_is_not_confirmed(trouble: dict[str, object]) -> None:
    def measure(rate: float, seconds: float, purpose: str) -> Step:
        if purpose == "confirm" and rate > 100:
            return replace(step(rate, seconds, 1.0, 10.0, purpose), **trouble)  # type: ignore[arg-type]
        return step(rate, seconds, queue_p99(rate, 240.0), 10.0, purpose)

    found = Found(10.0)
    find_rate(found, measure, first=100.0, step_s=5.0)
    assert found.rate is not None
    assert found.rate <= 100


def test_the_error_of_a_p99_is_the_deviation_of_its_estimates() -> None:
    rng = np.random.default_rng(0)
    estimates, errors = [], []
    for _ in range(200):
        pieces = []
        for _ in range(8):
            piece = Histogram()
            for each in rng.exponential(1.0, 500):
                piece.add(float(each))
            pieces.append(piece)
        p99, error = p99_of(pieces)
        estimates.append(p99)
        errors.append(error)
    assert median(errors) == pytest.approx(float(np.std(estimates)), rel=0.35)
