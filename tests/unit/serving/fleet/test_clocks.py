"""When all replicas switch, as a replica knows it whose clock is right, ahead or behind, and whose looks are slow."""

from __future__ import annotations

import time

import pytest

from serving.fleet.clocks import moment_of
from storage.objects.served import Served


def left_ms(clock_ahead_ms: int, written_ago_ms: int, look_ago_ms: int, lead_ms: int = 300) -> tuple[float, float]:
    """Returns the milliseconds until the switch, and the seconds that the clock here is found to be ahead."""
    now, written = time.monotonic(), time.time_ns() // 1_000_000 - written_ago_ms - clock_ahead_ms
    served = Served(commit_at_unix_ms=written + lead_ms, written_unix_ms=written)
    moment = moment_of(served, now - look_ago_ms / 1000, longest_ms=3000)
    return (moment.at - now) * 1000, moment.ahead_s


@pytest.mark.parametrize(("written_ago_ms", "look_ago_ms"), [(40, 100), (250, 1000), (280, 2000)])
def test_a_clock_that_may_be_right_is_believed(written_ago_ms: int, look_ago_ms: int) -> None:
    left, ahead = left_ms(0, written_ago_ms, look_ago_ms)
    assert left == pytest.approx(300 - written_ago_ms, abs=20)
    assert ahead == 0


@pytest.mark.parametrize("clock_ahead_ms", [-2000, 2000])
def test_a_clock_that_must_be_wrong_is_replaced_by_the_times_of_the_looks(clock_ahead_ms: int) -> None:
    left, ahead = left_ms(clock_ahead_ms, 50, 100)
    assert left == pytest.approx(250, abs=20)
    assert ahead == pytest.approx(clock_ahead_ms / 1000, abs=0.2)


def test_what_was_written_long_ago_is_due_at_once() -> None:
    assert left_ms(0, 60_000, 10**9)[0] == pytest.approx(0, abs=20)
    assert left_ms(-2000, 100, 10**9)[0] == pytest.approx(0, abs=20)  # nothing bounds when it was written
    assert left_ms(0, 0, 100, lead_ms=10**6)[0] == pytest.approx(3000, abs=20)
