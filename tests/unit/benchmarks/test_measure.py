"""Repeats, turns, dropped repeats and interruptions, with contestants whose figures are known."""

from __future__ import annotations

import time

import pytest

from benchmarks.gauge import CpuGauge, busy_seconds, process_seconds
from benchmarks.measure import Samples, interleave, median, per_second, together


class ScriptedGauge(CpuGauge):
    """Returns the figures that it was given, one for each round, including the warm-up round."""

    def __init__(self, cores: list[float]) -> None:
        super().__init__()
        self.cores = iter(cores)

    def start(self) -> None:
        pass

    def stop(self) -> float:
        return next(self.cores)


QUIET, BUSY = 0.0, 1.0


def test_contestants_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []
    contestants = {name: lambda turn, n=name: order.append(f"{n}{turn}") or float(turn) for name in "ab"}
    samples = interleave(contestants, repeats=3, gauge=ScriptedGauge([QUIET] * 4))
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3"]
    assert samples.values("a") == [1.0, 2.0, 3.0]
    assert samples.dropped == 0
    assert samples.is_clean


def test_disturbed_repeats_are_dropped_and_repeated() -> None:
    gauge = ScriptedGauge([BUSY, QUIET, BUSY, QUIET, BUSY, QUIET])
    samples = interleave({"a": float}, repeats=3, gauge=gauge)
    assert samples.values("a") == [1.0, 3.0, 5.0]
    assert samples.dropped == 2
    assert samples.is_clean


def test_when_nearly_all_are_disturbed_all_count_and_are_marked() -> None:
    gauge = ScriptedGauge([QUIET, QUIET] + [BUSY] * 8)
    samples = interleave({"a": float}, repeats=3, gauge=gauge)
    assert len(samples.kept) == 9  # three times as many as asked for, no more
    assert samples.dropped == 0
    assert not samples.is_clean


def test_time_ends_it_but_not_before_three_repeats() -> None:
    samples = interleave({"a": float}, repeats=7, gauge=ScriptedGauge([QUIET] * 8), max_s=0.0)
    assert len(samples.kept) == 3


def test_an_interruption_keeps_the_repeats_that_are_complete() -> None:
    def second(turn: int) -> float:
        if turn == 3:
            raise KeyboardInterrupt
        return 1.0

    samples = interleave({"a": float, "b": second}, repeats=7, gauge=ScriptedGauge([QUIET] * 9))
    assert samples.interrupted
    assert samples.values("a") == [1.0, 2.0]
    assert samples.values("b") == [1.0, 1.0]


def test_a_derived_figure_is_derived_in_each_repeat() -> None:
    samples = Samples(("a", "b"), [{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 6.0}], [False, False])
    samples.add("limit", lambda figures: 1 / (1 / figures["a"] + 1 / figures["b"]))
    assert samples.values("limit") == pytest.approx([2 / 3, 2.0])
    assert samples.names == ("a", "b", "limit")


def test_work_goes_on_where_it_stopped() -> None:
    seen: list[int] = []
    contestant = per_second(seen.append, 10.0, piece_s=0.001)
    assert contestant(0) > 0
    warmed = len(seen)
    assert contestant(1) > 0
    assert seen == list(range(2 * warmed))


def test_a_run_up_is_worked_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    seen: list[int] = []

    def work(number: int) -> None:
        seen.append(number)
        clock[0] += 100.0 if 10 <= number < 15 else 1.0  # the run-up of the first measurement is slow

    contestant = per_second(work, 3.0, piece_s=10.0, run_up_s=5.0)
    assert contestant(0) == pytest.approx(3.0)
    assert contestant(1) == pytest.approx(3.0)
    assert seen == list(range(25))


def test_threads_start_together_and_their_figures_are_added() -> None:
    assert together([lambda turn: 1.0 + turn, lambda turn: 2.0])(4) == 7.0


def test_a_failure_on_a_thread_is_not_lost() -> None:
    def fails(_: int) -> float:
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        together([lambda _: 1.0, fails])(0)


def test_median() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0]) == 2.5
    assert median([]) != median([])  # NaN


def test_the_gauge_counts_our_own_work_as_ours() -> None:
    gauge = CpuGauge()
    gauge.start()
    sum(range(3_000_000))
    # Others may be busy at any time: only the account itself is checked.
    assert gauge.stop() >= 0.0
    assert gauge.is_disturbed(gauge.quiet_cores + 0.01)
    assert not gauge.is_disturbed(gauge.quiet_cores)
    before = busy_seconds()
    assert busy_seconds() >= before


def test_a_process_that_is_gone_used_nothing() -> None:
    assert process_seconds(2**22 + 1) == 0.0
