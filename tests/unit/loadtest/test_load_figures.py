"""Latencies are counted to a quarter of a percent, phases are parsed as documented, and requests are due on time."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from emberline.loads.table import head, rows
from loadtest.arrivals import Arrivals
from loadtest.conditions import parse_condition
from loadtest.counts import MOST_ERRORS, OTHER_ERRORS, SecondCounts
from loadtest.figures import latency_figures
from loadtest.histogram import Histogram, merged
from loadtest.pacing import RunningPhase
from loadtest.phases import Phase, parse_duration, parse_rates, parse_users
from loadtest.records import PhaseRecord
from loadtest.runner import KindRun


def test_quantiles_are_those_of_the_latencies_to_a_quarter_of_a_percent() -> None:
    times = np.random.default_rng(1).lognormal(1.0, 1.5, 20_000)
    parts = [Histogram(), Histogram()]
    for number, milliseconds in enumerate(times.tolist()):
        parts[number % 2].add(milliseconds)
    whole = merged([Histogram.from_json_value(part.to_json_value()) for part in parts])
    for share in (0.001, 0.5, 0.9, 0.99, 0.999):
        exact = float(np.quantile(times, share, method="inverted_cdf"))
        assert whole.quantile(share) == pytest.approx(exact, rel=0.0026)
    assert whole.largest == times.max() == whole.quantile(1.0)
    assert whole.total == len(times)
    assert whole.over(10.0) == pytest.approx(int((times > 10).sum()), rel=0.02)


def test_without_requests_there_is_no_quantile() -> None:
    assert math.isnan(Histogram().quantile(0.99))
    assert latency_figures(SecondCounts(), 1.0)["requests"] == 0


def test_failures_count_apart_and_what_has_no_answer_counts_in_the_quantiles() -> None:
    counts = SecondCounts()
    for milliseconds in range(1, 100):
        counts.latency.add(float(milliseconds))
    counts.unanswered = 1
    counts.latency.add(30_000.0)
    counts.failed = 2
    figures = latency_figures(counts, 10.0)
    assert (figures["requests"], figures["failures"], figures["unanswered"]) == (102, 2, 1)
    assert figures["requests_per_second"] == 9.9
    assert figures["p50_ms"] == pytest.approx(50, rel=0.003)
    assert figures["max_ms"] == 30_000.0


def test_texts_of_errors_are_bounded() -> None:
    counts = SecondCounts()
    for number in range(100):
        counts.add_error(f"error {number}")
    assert len(counts.errors) == MOST_ERRORS + 1
    assert counts.errors[OTHER_ERRORS] == 100 - MOST_ERRORS


def test_a_long_phase_keeps_a_bounded_number_of_stretches() -> None:
    record = PhaseRecord(Phase(10_000, (1.0, 1.0)), 1, 0.0)
    for second in range(10_000):
        counts = SecondCounts()
        counts.latency.add(1.0)
        record.add(second, counts)
    assert len(record.seconds) <= 1200
    assert record.counts().latency.total == 10_000
    entries = record.over_time()
    assert [entry["second"] for entry in entries] == list(range(0, 10_000, record.width))
    assert sum(entry["requests"] for entry in entries) == 10_000


def answered(count: int) -> SecondCounts:
    counts = SecondCounts(answered=count)
    counts.latency.add(1.0, count)
    return counts


@pytest.mark.parametrize("passed", [1, 3, 10, 1300, 5000, 20_000])
def test_the_rate_that_is_shown_meanwhile_is_that_of_the_last_seconds(passed: int) -> None:
    record = PhaseRecord(Phase(28_800, (100.0, 100.0)), 1, 0.0)
    for second in range(passed):
        record.add(second, answered(100))
    record.add(passed, answered(30))  # a second that is not over yet
    counts, seconds = record.latest(3)
    assert counts.answered / seconds == 100


def test_the_first_second_has_a_rate_too() -> None:
    record = PhaseRecord(Phase(10, (100.0, 100.0)), 1, 0.0)
    assert record.latest(3)[0].answered == 0
    record.add(0, answered(30))
    counts, seconds = record.latest(3)
    assert (counts.answered, seconds) == (30, 1)


def test_answers_after_the_end_are_no_rate_that_the_server_held() -> None:
    """A server answers 100 of 200 requests a second, and the others in the ten seconds after the load."""
    record = PhaseRecord(Phase(10, (200.0, 200.0)), 1, 0.0, lasted=10.0)
    for second in range(20):
        counts = SecondCounts(answered=100)
        if second < 10:
            counts.latency.add(5_000.0, 200)
        record.add(second, counts)
    figures = record.figures()
    assert (figures["requests"], figures["requests_per_second"]) == (2000, 100)
    assert KindRun("grpc", [record]).figures()["requests_per_second"] == 100
    assert record.figures(1)["requests_per_second"] == 100


def test_an_answer_after_the_end_is_not_counted_in_the_last_second() -> None:
    phase = RunningPhase(1, 100.0, 2.5)
    for moment in (100.0, 102.4, 102.6, 104.0):
        phase.count_answer(moment)
    assert {second: counts.answered for second, counts in phase.take_counts().items()} == {0: 1, 2: 1, 3: 1, 4: 1}


def test_figures_without_seconds_leave_none_of_them_out() -> None:
    """A program that reports one phase as a whole has no first second that could be left out."""
    record = PhaseRecord(Phase(6, (50.0, 50.0)), 1, 0.0, lasted=6.0, width=6)
    record.add(0, answered(300))
    assert record.figures(1)["requests_per_second"] == 50
    assert record.figures(1)["p99_ms"] == pytest.approx(1.0)
    (entry,) = KindRun("http_json", [record]).over_time()
    assert (entry["requests_per_second"], entry["seconds"]) == (50, 6)


def test_what_the_generator_itself_costs_is_said() -> None:
    record = PhaseRecord(Phase(1, (100.0, 100.0)), 1, 0.0, lasted=1.0)
    counts = answered(100)
    counts.lag.add(0.0, 90)
    counts.lag.add(4.0, 10)
    record.add(0, counts)
    record.wall[0], record.cpu[0] = 10.0, 9.0
    busy, late = record.generator_notes()
    assert "a process of the generator used 90% of a core" in busy
    assert "the generator sent 1% of the requests more than 4.00 ms late although a connection was free" in late
    record.cpu[0] = 8.0
    assert record.generator_notes() == [late]


@pytest.mark.parametrize("title", ["http_binary", "  100 to 1,000 requests a second"])
def test_every_line_of_the_table_fits_80_columns(title: str) -> None:
    times = dict.fromkeys(("p50_ms", "p90_ms", "p99_ms"), 0.994) | {"p99_9_ms": 99.999, "max_ms": 29_999.7}
    counts = {"requests": 123_456_789, "failures": 999_999, "requests_per_second": 123_456.0}
    lines = [head(), *rows(title, {**counts, **times})]
    assert max(map(len, lines)) <= 80
    assert lines[-1].split()[-7:] == ["999,999", "123,456", "0.99", "0.99", "0.99", "100.0", "30000"]
    assert "123,456,789" in lines[-1]
    assert title in "".join(lines[1:])
    assert {len(lines[0])} == {len(lines[-1])}
    (none,) = rows("grpc", {**counts, **dict.fromkeys(times, float("nan"))})
    assert none.split()[-5:] == ["-"] * 5


def test_a_generator_without_an_answer_has_no_share_of_the_latency() -> None:
    record = PhaseRecord(Phase(1, (5.0, 5.0)), 1, 0.0, lasted=1.0)
    counts = SecondCounts(failed=5)
    counts.lag.add(30.0, 5)
    record.add(0, counts)
    assert record.generator_notes() == []


@pytest.mark.parametrize(
    ("text", "phases"),
    [
        ("500", [Phase(10, (500, 500))]),
        ("100,200,400", [Phase(10, (rate, rate)) for rate in (100, 200, 400)]),
        ("100..1000@60s", [Phase(60, (100, 1000))]),
        ("200@30s, 1000@5s, 200@2m", [Phase(30, (200, 200)), Phase(5, (1000, 1000)), Phase(120, (200, 200))]),
        ("0.5@8h", [Phase(28_800, (0.5, 0.5))]),
    ],
)
def test_profiles_of_rates_are_parsed(text: str, phases: list[Phase]) -> None:
    assert parse_rates(text, 10) == phases


def test_profiles_of_users_are_parsed() -> None:
    assert parse_users("1,4@5s", 10) == [Phase(10, users=1), Phase(5, users=4)]
    assert [phase.title for phase in parse_users("1,4", 1)] == ["1 user", "4 users"]
    assert parse_duration("90") == 90


@pytest.mark.parametrize(
    "text", ["", "x", "100@", "0", "100..0", "5@3d", "1e9", "100;200", "0.09", ",".join(["1"] * 101)]
)
def test_another_profile_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_rates(text, 10)


@pytest.mark.parametrize("text", ["1..4", "1.5", "0"])
def test_users_are_whole_and_make_no_ramp(text: str) -> None:
    with pytest.raises(ValueError, match="whole numbers of users"):
        parse_users(text, 10)


def dues(arrivals: Arrivals) -> list[float]:
    found = []
    while (due := arrivals.next()) is not None:
        found.append(due)
    return found


@pytest.mark.parametrize(("begin", "end"), [(100.0, 100.0), (50.0, 150.0), (150.0, 50.0)])
def test_requests_are_due_evenly_and_once_over_all_processes(begin: float, end: float) -> None:
    found = sorted(due for index in range(3) for due in dues(Arrivals(begin, end, 10.0, index=index, processes=3)))
    assert len(found) == 1000
    # What is due by t is the integral of the rate.
    for number, due in enumerate(found):
        assert begin * due + (end - begin) * due**2 / 20 == pytest.approx(number + 0.5)


def test_random_gaps_have_the_rate_and_are_the_same_for_a_seed() -> None:
    first, again = (dues(Arrivals(200, 200, 50.0, gaps=random.Random(7))) for _ in range(2))
    assert first == again
    assert len(first) == pytest.approx(10_000, rel=0.05)
    gaps = np.diff(first)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1), "those of a Poisson process"


FIGURES = {"requests": 1000, "failures": 2, "unanswered": 0, "p99_ms": 12.0, "requests_per_second": 480.0}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("p99>10ms", True),
        ("p99 > 12", False),
        ("p99>=0.012s", True),
        ("p99>900us", True),
        ("failed>0.1%", True),
        ("failed>0.2%", False),
        ("failed>1", True),
        ("rate<500", True),
        ("rate<480", False),
        ("hit_rate<90%", True),
    ],
)
def test_a_condition_says_whether_the_test_fails(text: str, holds: bool) -> None:
    assert parse_condition(text).holds({**FIGURES, "hit_rate": 0.85}) is holds


def test_a_figure_that_is_not_there_fails_the_test() -> None:
    assert parse_condition("hit_rate<90%").holds({**FIGURES, "hit_rate": None})
    assert parse_condition("p99.9>1s").holds({**FIGURES, "p99_9_ms": math.nan})


@pytest.mark.parametrize("text", ["p99", "p98>3", "p99>10%", "rate<5ms", "p99=3", "failed>5ms"])
def test_another_condition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected conditions|none of the figures|has no unit"):
        parse_condition(text)


def test_a_row_of_the_table_has_no_number_where_nothing_was_answered() -> None:
    (text,) = rows("http_json", latency_figures(SecondCounts(failed=5), 1.0))
    assert text.split() == ["http_json", "5", "5", "0", "-", "-", "-", "-", "-"]
    assert len(text) == len(head())
