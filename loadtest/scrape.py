"""Reads the server's metrics during a load test: hit rates, snapshots, what waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

#: Seconds between two looks. Each costs the server some milliseconds of a core.
EVERY_S = 2.0
#: Looks that are kept at most; of more, every second one is dropped.
MOST_LOOKS = 4000


@dataclass(frozen=True)
class Look:
    """Holds what the metrics page said of the model at one time, time.monotonic.

    Counters count from the server's start.
    """

    time: float
    #: Ids that were found by tier, and in none.
    hits: dict[str, float]
    absent: float
    #: VERSION.SEQUENCE that the main arm serves, "" where the page does not say it.
    snapshot: str
    #: Requests that wait for a session.
    waiting: float


def read_page(text: str, model: str, when: float) -> Look:
    """Returns what a metrics page says of a model. Raises ValueError for a page in another format."""
    hits: dict[str, float] = {}
    absent = waiting = 0.0
    snapshots: list[tuple[int, int]] = []
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("model") != model:
                continue
            if sample.name == "emberline_ids_hit_total":
                tier = sample.labels.get("tier", "")
                hits[tier] = hits.get(tier, 0.0) + sample.value
            elif sample.name == "emberline_ids_absent_total":
                absent += sample.value
            elif sample.name == "emberline_queue_length":
                waiting += sample.value
            elif sample.name == "emberline_snapshot_sequence" and sample.labels.get("arm") == "main":
                snapshots.append((int(sample.labels.get("version", "")), int(sample.value)))
    newest = max(snapshots, default=None)
    return Look(when, hits, absent, "" if newest is None else f"{newest[0]}.{newest[1]}", waiting)


class MetricsWatch:
    """Reads the page in a thread of its own until `stop`. fetch: returns the page's text, or raises OSError."""

    def __init__(self, fetch: Callable[[], str], model: str) -> None:
        self._fetch, self._model = fetch, model
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.looks: list[Look] = []
        #: Why the page could not be read the last time; "" if it could.
        self.trouble = ""

    def start(self) -> None:
        """Reads the page for the first time, then goes on in the thread."""
        self._look()
        if not self.trouble:
            self._thread.start()

    def stop(self) -> None:
        """Reads it a last time, and ends."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)
            self._look()

    def __enter__(self) -> MetricsWatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _follow(self) -> None:
        while not self._ending.wait(EVERY_S):
            self._look()

    def _look(self) -> None:
        try:
            self.looks.append(read_page(self._fetch(), self._model, time.monotonic()))
            self.trouble = ""
        except (OSError, ValueError) as error:
            self.trouble = str(error)
        if len(self.looks) > MOST_LOOKS:
            del self.looks[1:-1:2]


def server_figures(looks: list[Look], began: float) -> dict[str, Any]:
    """Returns hit rates over time, snapshot switches, and the hit rate of the whole run. began: second 0.

    A hit is an id whose row was found in memory, DRAM or HBM, among those that have a row.
    """
    series = []
    switches = []
    for before, now in zip(looks, looks[1:], strict=False):
        rate = _hit_rate(before, now)
        second = now.time - began
        series.append({"second": second, "hit_rate": rate, "waiting": now.waiting, "snapshot": now.snapshot})
        if now.snapshot != before.snapshot:
            switches.append({"second": second, "from": before.snapshot, "to": now.snapshot})
    whole = _hit_rate(looks[0], looks[-1]) if len(looks) > 1 else None
    return {"hit_rate": whole, "series": series, "switches": switches}


def _hit_rate(before: Look, now: Look) -> float | None:
    found = {tier: count - before.hits.get(tier, 0.0) for tier, count in now.hits.items()}
    if min(found.values(), default=0.0) < 0:
        return None  # the server was started again meanwhile
    everything = sum(found.values())
    return (everything - found.get("ssd", 0.0)) / everything if everything > 0 else None
