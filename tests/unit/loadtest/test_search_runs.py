"""A run of a search keeps what was measured: the figures of the hold that was found, as long as it was asked for."""

from __future__ import annotations

import math

import pytest

from loadtest.counts import SecondCounts
from loadtest.drivers import Watch
from loadtest.phases import Phase
from loadtest.records import PhaseRecord
from loadtest.runner import KindRun, Plan, run_plan
from loadtest.search import Found


class _Instant:
    """Answers every phase at once, and keeps how long they were to take.

    limit: the rate up to which all is answered in 1 ms. unsteady: in holds of more than this rate, every second part of
    thirty seconds is answered in 6 ms. fails_from: every request of a hold of this rate and more fails.
    """

    def __init__(self, limit: float = 8.0, unsteady: float = math.inf, fails_from: float = math.inf) -> None:
        self.seconds: list[float] = []
        self.ended_early = 0
        self._limit, self._unsteady, self._fails_from = limit, unsteady, fails_from

    def run(self, phase: Phase, *, seed: int | None, drain_s: float, watch: Watch) -> PhaseRecord:
        self.seconds.append(phase.seconds)
        record = PhaseRecord(phase, 1, 0.0, lasted=phase.seconds)
        rate = 0.0 if phase.rate is None else phase.rate[0]
        for second in range(round(phase.seconds)):
            counts = SecondCounts()
            if phase.seconds > 300 and rate >= self._fails_from:
                counts.failed = round(rate)
            else:
                is_slow = phase.seconds > 300 and rate > self._unsteady and (second - 1) // 30 % 2
                counts.latency.add(100.0 if rate > self._limit or second == 0 else 6.0 if is_slow else 1.0, round(rate))
                counts.answered = round(rate)
            record.add(second, counts)
            if watch(record):
                record.lasted = second + 1.0
                self.ended_early += phase.seconds > 300
                break
        return record

    def note(self) -> str:
        return ""


def test_the_parts_of_a_phase_are_equally_long() -> None:
    record = PhaseRecord(Phase(61.0, (100.0, 100.0)), 1, 0.0, lasted=61.0)
    for second in range(62):  # the last answers come after the end
        counts = SecondCounts()
        counts.latency.add(1.0 if second else 500.0, 100)
        record.add(second, counts)
    parts = record.parts(10, 5, 1)
    assert [part.total for part in parts] == [600] * 9 + [700]
    assert max(part.quantile(1.0) for part in parts) < 2.0
    assert record.parts(10, 7, 1) == []
    # A generator that counts the phase as a whole has nothing to compare.
    whole = PhaseRecord(Phase(61.0, (100.0, 100.0)), 1, 0.0, lasted=61.0)
    whole.add(1, counts)
    assert whole.parts(10, 5, 1) == []


@pytest.mark.parametrize(("step_s", "longest"), [(5.0, 60.0), (90.0, 180.0)])
def test_a_measurement_is_never_shorter_than_asked_for(step_s: float, longest: float) -> None:
    drivers = _Instant()
    run_plan("grpc", drivers, Plan(bound_ms=10.0, first_rate=4.0, step_s=step_s), lambda *_: None)
    assert min(drivers.seconds) >= step_s + 1
    assert max(drivers.seconds) == longest + 1


def test_of_a_search_the_figures_are_those_of_the_hold_that_was_found() -> None:
    plan = Plan(bound_ms=10.0, first_rate=100.0, step_s=5.0, hold_s=300.0)
    # Nothing is steady: the first hold was the highest, and five more came after it.
    run = run_plan("grpc", _Instant(limit=800.0, unsteady=0.0), plan, lambda *_: None)
    assert run.found is not None
    assert run.found.rate is not None
    assert run.found.rate == pytest.approx(800.0, rel=0.04)
    assert (run.found.held_s, run.found.is_steady) == (300.0, False)
    assert run.found.p99_ms == pytest.approx(6.0, rel=0.01)
    held = [step.rate for step in run.found.steps if step.purpose == "hold"]
    assert held == pytest.approx([run.found.rate * share for share in (1.0, 0.95, 0.9, 0.8, 0.65, 0.5)])
    figures = run.figures()
    assert figures["requests"] == pytest.approx(300 * run.found.rate, rel=0.01)
    # The first second, which took 100 ms, is left out, as in the p99 that the search names.
    assert (figures["p99_ms"], figures["max_ms"]) == (run.found.p99_ms, pytest.approx(6.0, rel=0.01))
    # Half of that rate is steady.
    run = run_plan("grpc", _Instant(limit=800.0, unsteady=600.0), plan, lambda *_: None)
    assert run.found is not None
    assert run.found.rate == pytest.approx(520.0, rel=0.04)
    assert run.found.is_steady
    assert run.found.p99_ms == pytest.approx(1.0, rel=0.01)


def test_a_hold_is_as_long_as_asked_for_and_ends_where_it_cannot_succeed() -> None:
    slow = _Instant(limit=8.0)
    plan = Plan(bound_ms=10.0, first_rate=4.0, step_s=5.0, hold_s=301.0)
    run = run_plan("grpc", slow, plan, lambda *_: None)
    assert run.found is not None
    assert (slow.seconds[-1], run.found.held_s, run.found.is_steady) == (302.0, 301.0, None)  # too few to be compared
    assert math.isnan(run.found.p99_error_ms)
    dead = _Instant(limit=800.0, fails_from=0.0)
    run = run_plan("grpc", dead, Plan(bound_ms=10.0, first_rate=100.0, step_s=5.0, hold_s=301.0), lambda *_: None)
    assert run.found is not None
    assert (run.found.rate, dead.ended_early) == (None, 9)
    assert run.found.why == "80/s was not held: no request was answered"


def test_the_first_second_that_a_search_leaves_out_hides_no_failure_and_no_time() -> None:
    record = PhaseRecord(Phase(11.0, (100.0, 100.0)), 1, 0.0, lasted=11.0)
    for second in range(11):
        counts = SecondCounts(failed=0 if second else 50, unanswered=0 if second else 7, answered=100)
        counts.latency.add(1.0, 100)
        record.add(second, counts)
    figures = KindRun("grpc", [record], Found(10.0)).figures()
    assert (figures["failures"], figures["unanswered"]) == (50, 7)
    assert figures["requests_per_second"] == pytest.approx(100.0)
    # In a long phase, or by a generator that counts it as a whole, the first second is not counted alone.
    whole = PhaseRecord(Phase(10.0, (100.0, 100.0)), 1, 0.0, lasted=10.0, width=10)
    whole.add(0, record.counts())
    assert KindRun("grpc", [whole], Found(10.0)).figures()["requests_per_second"] == pytest.approx(110.0)
