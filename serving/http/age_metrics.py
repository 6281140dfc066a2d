"""Collects how old what is served is, and how long updates take step by step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from prometheus_client import Metric

from serving.http.prometheus import Labels, family
from serving.pipeline.snapshot import Snapshot
from serving.updates.counters import UpdateCounters
from serving.updates.steps import TAKING


def snapshot_ages(served: Sequence[tuple[Snapshot, Labels]]) -> Iterator[Metric]:
    """Yields the seconds since the served snapshots were published. Labels: model, version, arm."""
    now = time.time()
    ages = [
        (
            {"model": of["model"], "version": of["version"], "arm": of["arm"]},
            max(0.0, now - snapshot.published_unix_ms / 1000),
        )
        for snapshot, of in served
    ]
    meaning = "Time since the served snapshot was published"
    yield family("emberline_snapshot_age_seconds", "gauge", meaning, ages)


def update_ages(known: Sequence[tuple[UpdateCounters, Labels]]) -> Iterator[Metric]:
    """Yields ages by the clock of this server, and the time of updates by step. Labels: model, and step."""
    now = time.time()
    applied = [
        ({"model": of["model"]}, max(0.0, now - counters.served_since_unix_ms / 1000))
        for counters, of in known
        if counters.served_since_unix_ms
    ]
    yield family(
        "emberline_snapshot_applied_age_seconds", "gauge", "Time since this process began to serve it", applied
    )
    behind = [
        ({"model": of["model"]}, max(0.0, now - counters.newest_event_unix_ms / 1000))
        for counters, of in known
        if counters.newest_event_unix_ms
    ]
    meaning = "Time since the newest event that the served snapshot was trained on"
    yield family("emberline_events_behind_seconds", "gauge", meaning, behind)
    steps = [
        ({"model": of["model"], "step": step}, counters.step_seconds.get(step, 0.0))
        for counters, of in known
        for step in TAKING
    ]
    meaning = "Time that updates took, by the step that ended; in a fleet, recorded includes the wait for the others"
    yield family("emberline_update_step_seconds_total", "counter", meaning, steps)
