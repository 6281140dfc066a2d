"""Measures a fleet: how fast and how closely together replicas switch, and what they ask of the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.fleet.clients import Clients, Seen
from tests.faults.fleet.replicas import Fleet, fleet
from tests.faults.fleet.waiting import until

REACH_S = 60.0
IDLE_S = 30.0
_REQUESTS = "emberline_object_store_requests_total"


@dataclass(frozen=True)
class Switches:
    """skew_ms: for each snapshot, from its first answer at any replica to the last answer of an older one at any.

    visible_s: from its publication until every replica had answered from it.
    """

    skew_ms: np.ndarray
    visible_s: np.ndarray

    def line(self) -> str:
        """Returns the figures for the terminal."""
        p50, p99 = np.percentile(self.skew_ms, [50, 99])
        seen50, seen99 = np.percentile(self.visible_s, [50, 99])
        return (
            f"{len(self.skew_ms)} switches: skew p50 {p50:.1f} ms, p99 {p99:.1f} ms, most {self.skew_ms.max():.1f} ms; "
            f"publish to all p50 {seen50:.2f} s, p99 {seen99:.2f} s"
        )


def switches(running: Fleet, count: int, rng: np.random.Generator) -> tuple[Switches, list[str]]:
    """Publishes deltas one after the other, each when all replicas have answered from the one before."""
    visible, line = [], []
    with Clients(running).watching() as clients:
        seen = clients.seen
        until(lambda: set(seen.first) == set(running.names), "every replica answers", REACH_S)
        for _ in range(count):
            began = time.monotonic()
            line.append(running.publish())
            until(
                lambda: all(line[-1].id in seen.first.get(name, {}) for name in running.names),
                lambda: f"{line[-1].name} was not seen at every replica",
                REACH_S,
            )
            visible.append(time.monotonic() - began)
            time.sleep(float(rng.uniform(0.0, 0.3)))
    skew = [1000 * skew_s(seen, running.places, each.id) for each in line]
    return Switches(np.array(skew), np.array(visible)), seen.wrong


def skew_s(seen: Seen, places: dict[str, int], snapshot: str) -> float:
    """Returns how long answers of a snapshot or a newer one, and of older ones, came beside each other."""
    place = places[snapshot]
    newer = min(at for each in seen.first.values() for name, at in each.items() if places[name] >= place)
    older = [at for each in seen.last.values() for name, at in each.items() if places[name] < place]
    return max(0.0, max(older, default=0.0) - newer)


def alternating(running: Fleet, count: int, rng: np.random.Generator, *, through_balancer: bool) -> tuple[int, Seen]:
    """Returns how many answers of one caller were older than one that it had already, and all that it saw."""
    clients = Clients(running).alternating(through_balancer=through_balancer)
    with clients:
        for _ in range(count):
            newest = running.publish()
            running.reach(newest, REACH_S)
            time.sleep(float(rng.uniform(0.0, 0.2)))
        seen = clients.take()
    return len(seen.older), seen


def idle_requests(running: Fleet, seconds: float = IDLE_S) -> float:
    """Returns how many requests a replica and hour go to the store while nothing is published."""
    time.sleep(12.0)  # until nobody hurries any more, and the lease has ended
    before, began = _requests(running), time.monotonic()
    time.sleep(seconds)
    asked = (_requests(running) - before) / (time.monotonic() - began)
    return asked * 3600 / len(running.names)


def _requests(running: Fleet) -> float:
    return sum(each.metrics()[_REQUESTS] for each in running.servers.values())


def large_delta(running: Fleet, rows: int, *, wakes: bool = False) -> float:
    """Publishes a delta of so many rows; returns the seconds from the first upload until every replica serves it.

    wakes: whether the publisher then calls one server, which makes all of them look.
    """
    made = running.note(running.world.publish_delta(running.newest, changed={"item": range(1, rows + 1)}))
    running.newest = made
    began = time.monotonic()
    running.model.put(made.path)
    if wakes:
        threading.Thread(target=running.command, args=(running.names[0], "load"), daemon=True).start()
    running.reach(made, REACH_S)
    return time.monotonic() - began


def _skew(running: Fleet, count: int, rng: np.random.Generator) -> tuple[str, Sequence[str]]:
    found, wrong = switches(running, count, rng)
    return found.line(), wrong


def _alternate(running: Fleet, count: int, rng: np.random.Generator) -> tuple[str, Sequence[str]]:
    direct, first = alternating(running, count, rng, through_balancer=False)
    balanced, second = alternating(running, count, rng, through_balancer=True)
    text = (
        f"{count} switches: {direct} of {first.answers} answers older than one before, from replica to replica; "
        f"{balanced} of {second.answers} through the balancer"
    )
    return text, [*first.wrong, *first.failed, *second.wrong, *second.failed]


def _idle(running: Fleet, count: int, rng: np.random.Generator) -> tuple[str, Sequence[str]]:
    return f"{idle_requests(running):,.0f} requests a replica and hour while nothing is published", []


MEASURES: dict[str, Callable[[Fleet, int, np.random.Generator], tuple[str, Sequence[str]]]] = {
    "skew": _skew,
    "alternate": _alternate,
    "idle": _idle,
}


def measure(name: str, work: Path, *, count: int, seed: int, **options: Any) -> tuple[str, Sequence[str]]:
    """Runs one measurement on a fleet of its own; returns its line and what was wrong."""
    with fleet(work, seed=seed, **options) as running:
        return MEASURES[name](running, count, np.random.default_rng(seed))
