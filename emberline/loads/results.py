"""Gathers everything that is known of a run into one value, for JSON and for the page."""

from __future__ import annotations

import os
import time
from typing import Any

from loadtest.runner import KindRun
from loadtest.scrape import MetricsWatch, server_figures


def result_of(
    run: KindRun, watch: MetricsWatch | None, page: str, sent: str, distinct: int, generator: dict[str, Any]
) -> dict[str, Any]:
    """Returns the figures of one kind of requests, with all that they were made of.

    page: where metrics were read. sent: what requests are, in words. distinct: how many there are. generator: its name
    and size.
    """
    phases = [{**record.figures(), "began_s": record.began - run.began} for record in run.records]
    is_open = bool(run.records) and run.records[0].phase.rate is not None
    server: dict[str, Any] = {"hit_rate": None, "series": [], "switches": [], "notes": []}
    if watch is not None:
        server |= server_figures(watch.looks, run.began)
        if watch.trouble:
            server["notes"] = [f"the server's metrics were not read from {page} ({watch.trouble}); give --metrics"]
    return {
        **run.figures(),
        "hit_rate": server["hit_rate"],
        "mode": "open" if is_open else "closed",
        "interrupted": run.interrupted,
        "broken": run.broken,
        "sent": sent,
        "distinct_requests": distinct,
        "ended_unix": time.time(),
        "phases": phases,
        "over_time": run.over_time(),
        "search": None if run.found is None else run.found.to_json_value(),
        "server": server,
        "generator": {**generator, "cores_of_machine": os.cpu_count(), "notes": run.notes()},
    }
