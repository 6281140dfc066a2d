"""Claims: three replicas over one object store switch to a snapshot together, and soon after it was published.

moto's S3 server, three servers, HAProxy and the clients that watch them run on the same cores. The same servers without
--fleet are the other side: each switches when it is done.

    python -m benchmarks.fleet            # about twelve minutes
    python -m benchmarks.fleet --quick
    python -m benchmarks.fleet --only skew
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from benchmarks.catalog import Run
from benchmarks.command import script
from tests.faults.fleet.measures import alternating, idle_requests, large_delta, switches
from tests.faults.fleet.replicas import Fleet, fleet, has_fleet_mode

PARTS = ("publish", "skew", "older", "requests")
ROWS, QUICK_ROWS = 100_000, 5_000
LARGE, QUICK_LARGE = 10, 2
SWITCHES, QUICK_SWITCHES = 200, 5
VISIBLE_S, WOKEN_S = 3.0, 1.0
HOURLY = 3700
# Of the skew of replicas that switch alone.
SKEW_RATIO = 5.0
IDLE_S, QUICK_IDLE_S = 60.0, 3.0


def measure(run: Run) -> None:
    """Measures a fleet, and the same servers without it."""
    if not has_fleet_mode():
        run.report.remark("this server has no --fleet: both sides switch alone")
    count = QUICK_SWITCHES if run.quick else SWITCHES
    with _fleet(run, "fleet") as running:
        if run.wants("publish"):
            publish(run, running)
        found = _skew(run, running, count) if run.wants("skew") else None
        if run.wants("older"):
            older(run, running, count)
        if run.wants("requests") and not run.is_late("requests"):
            asked = idle_requests(running, QUICK_IDLE_S if run.quick else IDLE_S)
            run.report.pairs(
                "requests a replica and hour, nothing published", [asked], [HOURLY], "3,700", unit="",
                less_is_better=True, target=1.0,
            )  # fmt: skip
    if found is None or run.is_late("replicas that switch alone"):
        return
    with _fleet(run, "alone", alone=True) as running:
        alone = _skew(run, running, count // 4 or 1, alone=True)
    claim = "from a snapshot's first answer at a replica to the last older one at any, p99"
    run.report.pairs(
        claim, [_p(found, 99)], [_p(alone, 99)], "replicas alone", unit="ms", less_is_better=True, target=SKEW_RATIO,
        note=f"p50 {_p(found, 50):.1f}, most {found.max():.1f}; alone p50 {_p(alone, 50):.0f}",
    )  # fmt: skip


def publish(run: Run, running: Fleet) -> None:
    """Measures the time from a published delta until every replica serves it."""
    rows = run.size(ROWS, QUICK_ROWS)
    for wakes, target_s in ((False, VISIBLE_S), (True, WOKEN_S)):
        taken = [large_delta(running, rows, wakes=wakes) for _ in range(QUICK_LARGE if run.quick else LARGE)]
        way = ", and one of them is called after publishing" if wakes else ""
        run.report.pairs(
            f"a delta of {rows:,} rows: from the first upload until three replicas serve it{way}", taken,
            [target_s] * len(taken), f"{target_s:g} s", unit="s", less_is_better=True, target=1.0,
            note=f"most {max(taken):.2f} s",
        )  # fmt: skip


def older(run: Run, running: Fleet, count: int) -> None:
    """Counts answers of one caller that were older than one that it had before."""
    for through_balancer in (False, True):
        found, seen = alternating(running, count, np.random.default_rng(2), through_balancer=through_balancer)
        for wrong in (*seen.wrong, *seen.failed):
            raise AssertionError(wrong)
        way = "through HAProxy" if through_balancer else "from replica to replica"
        run.report.remark(f"{way}: {found:,} of {seen.answers:,} answers older than one before, over {count} switches")


def _skew(run: Run, running: Fleet, count: int, *, alone: bool = False) -> np.ndarray:
    found, wrong = switches(running, count, np.random.default_rng(1))
    if wrong:
        raise AssertionError(wrong[0])
    run.report.remark(f"{'replicas alone' if alone else 'the fleet'}: {found.line()}")
    return found.skew_ms


def _p(values: np.ndarray, percent: float) -> float:
    return float(np.percentile(values, percent))


@contextmanager
def _fleet(run: Run, name: str, *, alone: bool = False) -> Iterator[Fleet]:
    folder = run.work / name
    folder.mkdir()
    with fleet(folder, items=run.size(ROWS, QUICK_ROWS) + 1, alone=alone) as running:
        yield running


if __name__ == "__main__":
    script("fleet")
