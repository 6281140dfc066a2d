"""Summaries of event times and histograms of ages, beside counts over the times themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from storage.checkpoint.event_times import AGE_BOUNDS_S, EventAges, EventTimes

NOW_MS = 1_800_000_000_000


def times_of(ages_s: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (NOW_MS - ages_s * 1000.0).astype(np.int64)


def summed(times: np.ndarray[Any, Any]) -> EventTimes:
    found = EventTimes.of(times)
    assert found is not None
    return found


def test_a_summary_has_the_ends_and_leaves_out_what_is_no_time_of_an_event() -> None:
    events = summed(np.array([NOW_MS, NOW_MS - 7, -1, 3, 10**17]))
    assert (events.rows, events.oldest_unix_ms, events.newest_unix_ms) == (2, NOW_MS - 7, NOW_MS)
    assert EventTimes.of(np.array([-1, 12], np.int64)) is None
    with pytest.raises(ValueError, match="ascending"):
        EventTimes(rows=2, oldest_unix_ms=1, newest_unix_ms=2, quantiles_unix_ms=(2, 1))


def test_counts_by_age_are_those_of_the_times_within_a_quantile() -> None:
    rng = np.random.default_rng(5)
    ages_s = rng.gamma(2.0, 3.0, 20_000)
    found = EventAges().with_events(summed(times_of(ages_s)), NOW_MS)
    assert round(found.rows) == 20_000
    assert found.sum_s == pytest.approx(ages_s.sum(), rel=0.02)
    for bound, (name, count) in zip(AGE_BOUNDS_S, found.buckets(), strict=False):
        assert name == str(bound)
        assert count == pytest.approx((ages_s <= bound).sum(), abs=20_000 / 100)
    assert found.quantile(0.5) == pytest.approx(np.quantile(ages_s, 0.5), abs=1.0)


def test_parts_together_are_like_the_whole() -> None:
    rng = np.random.default_rng(6)
    times = times_of(rng.gamma(2.0, 3.0, 30_000))
    joined = summed(times[:1000])
    for first in range(1000, 30_000, 1000):
        joined = joined.joined(summed(times[first : first + 1000]))
    whole = summed(times)
    assert (joined.rows, joined.oldest_unix_ms, joined.newest_unix_ms) == (
        whole.rows,
        whole.oldest_unix_ms,
        whole.newest_unix_ms,
    )
    for time in whole.quantiles_unix_ms[::10]:
        assert joined.until(time) == pytest.approx(whole.until(time), abs=30_000 / 50)
    few = summed(times[:30]).joined(summed(times[30:90]))
    assert few == summed(times[:90])


def test_events_before_a_time_are_not_counted_again() -> None:
    events = summed(times_of(np.arange(0.0, 100.0, 0.01)))
    later = EventAges().with_events(events, NOW_MS, after_ms=NOW_MS - 20_000)
    assert later.rows == pytest.approx(2000, abs=2)
    assert later.sum_s == pytest.approx(2000 * 10.0, rel=0.01)
    assert EventAges().with_events(events, NOW_MS, after_ms=NOW_MS).rows == 0.0
    assert later.quantile(0.5) is not None
    assert EventAges().quantile(0.5) is None


def test_an_event_from_the_future_has_no_age() -> None:
    found = EventAges().with_events(summed(times_of(np.array([-5.0, -1.0]))), NOW_MS)
    assert (found.buckets()[0], found.sum_s) == (("0.1", 2), 0.0)
