"""The age of events when they are served: each is counted once, by the first snapshot that was trained on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from serving.http.metrics import ServerMetrics
from storage.checkpoint.event_times import EventTimes
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path) as live:
        yield live


def events(ages_s: list[float]) -> EventTimes:
    found = EventTimes.of(np.array([(time.time() - age) * 1000 for age in ages_s], np.int64))
    assert found is not None
    return found


def shown(live: Live) -> dict[str, float]:
    """Returns the buckets that events came into, with how many; the newest event under its own name."""
    page = ServerMetrics(live.repository).page("")[0].decode()
    found, before = {}, 0.0
    for line in page.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("emberline_freshness_seconds_bucket"):
            if float(value) > before:
                found[name.split('le="')[1].split('"')[0]] = float(value) - before
            before = float(value)
        elif name.startswith("emberline_newest_event_unix_seconds"):
            found["newest"] = float(value)
    return found


def test_each_event_is_counted_once_at_the_age_at_which_it_was_served(live: Live) -> None:
    first = live.version()
    live.start()
    live.reaches(first)
    assert shown(live) == {}
    recent, later = events([20.0, 20.0, 100.0]), events([15.0])
    second = live.delta(first, events=recent)
    live.reaches(second)
    assert shown(live) == {"30.0": 2.0, "300.0": 1.0, "newest": recent.newest_unix_ms / 1000}
    live.repository.rollback(NAME)
    live.reaches(first)
    live.repository.resume(NAME)
    live.reaches(second)
    third = live.delta(second, events=later)
    live.reaches(third)
    assert shown(live) == {"30.0": 3.0, "300.0": 1.0, "newest": later.newest_unix_ms / 1000}


def test_a_cumulative_delta_counts_what_was_passed_over_and_a_start_counts_nothing(live: Live) -> None:
    first = live.version()
    live.start()
    live.reaches(first)
    old = events([100.0, 101.0])
    second = live.delta(first, events=old)
    live.reaches(second)
    live.repository.pause(NAME)
    third = live.delta(second, events=events([20.0, 20.0]))
    newest = events([5.0, 20.0, 20.0])
    whole = live.delta(third, since=first, events=old.joined(newest))
    live.repository.resume(NAME)
    live.reaches(whole)
    assert shown(live) == {"10.0": 1.0, "30.0": 2.0, "300.0": 2.0, "newest": newest.newest_unix_ms / 1000}
    live.stop()
    live.start()
    live.reaches(whole)
    assert set(shown(live)) == {"newest"}
