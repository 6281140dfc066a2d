"""The search finds the highest rate under a bound, for servers whose latency is known, and says where there is none."""

from __future__ import annotations

import itertools

import pytest

from loadtest.counts import SecondCounts
from loadtest.drivers import Watch
from loadtest.phases import Phase
from loadtest.records import PhaseRecord
from loadtest.runner import Plan, run_plan
from loadtest.search import MOST_STEPS, Found, Step, find_rate

SERVICE_MS = 1.0


def queue_p99(rate: float, limit: float) -> float:
    """Returns the p99 of a queue with exponential service times, which grows without bound at `limit` a second."""
    return 4.6 * SERVICE_MS / (1 - rate / limit) if rate < limit else 1e6


def search(bound_ms: float, limit: float, first: float = 100.0, disturbed: tuple[int, ...] = ()) -> Found:
    """Searches on such a queue. disturbed: numbers of measurements whose p99 is half as large again."""
    found, numbers = Found(bound_ms), itertools.count()

    def measure(rate: float, seconds: float, purpose: str) -> Step:
        p99 = queue_p99(rate, limit) * (1.5 if next(numbers) in disturbed else 1.0)
        return Step(rate, seconds, p99, "" if p99 <= bound_ms else f"p99 {p99:.2f} ms", purpose)

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
    assert found.steps[-1].purpose == "confirm"
    assert found.steps[-1].seconds == 20.0
    assert len(found.steps) < MOST_STEPS


def test_a_disturbed_measurement_is_repeated() -> None:
    calm = search(10.0, 640.0)
    # The third measurement is that of 400/s, half of what the bound allows without the disturbance.
    assert search(10.0, 640.0, disturbed=(1,)).rate == calm.rate


def test_a_rate_that_is_not_confirmed_is_lowered() -> None:
    calm = search(10.0, 640.0)
    last = len(calm.steps) - 1
    lowered = search(10.0, 640.0, disturbed=(last, last + 1))
    assert calm.rate is not None
    assert lowered.rate == pytest.approx(calm.rate * 0.9)


def test_a_bound_below_every_latency_is_said() -> None:
    found = search(4.0, 640.0)
    assert found.rate is None
    assert "not even 1.56/s stay under the bound: p99" in found.why


def test_a_search_without_an_end_stops() -> None:
    found = search(10.0, 1e12)
    assert found.rate is None
    assert "even 200,000/s stay under the bound" in found.why
    never = search(10.0, 640.0, disturbed=tuple(range(8, 1000)))
    assert len(never.steps) <= MOST_STEPS


class _Instant:
    """Answers every phase at once, and keeps how long they were to take."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def run(self, phase: Phase, *, seed: int | None, drain_s: float, watch: Watch) -> PhaseRecord:
        self.seconds.append(phase.seconds)
        record = PhaseRecord(phase, 1, 0.0, lasted=phase.seconds)
        rate = 0.0 if phase.rate is None else phase.rate[0]
        counts = SecondCounts()
        counts.latency.add(1.0 if rate <= 8.0 else 100.0, round(rate * phase.seconds))
        counts.answered = round(rate * phase.seconds)
        record.add(1, counts)
        return record

    def note(self) -> str:
        return ""


@pytest.mark.parametrize(("step_s", "longest"), [(5.0, 60.0), (90.0, 360.0)])
def test_a_measurement_is_never_shorter_than_asked_for(step_s: float, longest: float) -> None:
    drivers = _Instant()
    run_plan("grpc", drivers, Plan(bound_ms=10.0, first_rate=4.0, step_s=step_s), lambda *_: None)
    assert min(drivers.seconds) >= step_s + 1
    assert max(drivers.seconds) == longest + 1
