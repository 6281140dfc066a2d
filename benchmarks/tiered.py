"""Claims: a table ten times its DRAM budget is served at the hit rate of the best static choice, and at what speed.

Traffic goes by Zipf(1.05) and by the reuse that production shows (data/dlrm_reuse_2022.json). Claims about the cache
count lookups, not time: after each batch the promotions are waited for, so the figures do not depend on the machine.
The best static choice holds the most popular rows, as many as DRAM held, and is judged on the same lookups.

    python -m benchmarks.tiered            # 10 M rows: about six minutes, 3 GB of memory, 3 GB of disk
    python -m benchmarks.tiered --quick
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.catalog import Run, script
from benchmarks.disk_world import MadeTable, drop_page_cache
from benchmarks.dram_world import FEATURES, rows_of_numbers
from benchmarks.gauge import QUIET_CORES_DISK
from benchmarks.measure import median
from benchmarks.traffic import BATCH, Array, Popularity, Traffic, production_reuse, random_ids, zipf
from storage.features import Jagged
from storage.specs import LookupSpec
from storage.tiers.tiered import TieredStore

DIM = 32
SAMPLES = BATCH // FEATURES
TENTH = 10
BELOW_STATIC = 1.0
BELOW_NEW_OPTIMUM = 2.0
AFTER_CAPACITIES = 30
SCAN_COST = 1.0
IDS_PER_S = 1e6
MIDS = 1e-6
MS = 1e3
_FILL_CAPACITIES = 10
_WINDOW_BATCHES = 40


def measure(run: Run) -> None:
    """Speed and hit rate on a large table; a new hot set and a scan on a small one."""
    small = run.size(1_000_000, 60_000) if run.rows is None else run.rows // 10
    change_and_scan(run, small)
    rows = run.size(10_000_000, 200_000)
    if run.is_late("hit rate and speed"):
        return
    ids = random_ids(rows)
    made = MadeTable(ids, DIM)
    with (
        Served(run.work / "tenth", ids, made, rows * 4 * DIM // TENTH) as tenth,
        Served(run.work / "whole", ids, made, None) as whole,
    ):
        for popularity in (zipf(rows), production_reuse(rows)):
            if not run.is_late(f"{popularity.name}, hit rate and speed"):
                hit_rate(run, tenth, popularity)
                speed(run, tenth, whole, popularity)


@dataclass
class Window:
    """What some lookups gave: hits in DRAM, and those of the best static choice on the same lookups."""

    lookups: int = 0
    hits: int = 0
    static: int = 0

    @property
    def rate(self) -> float:
        """Per cent."""
        return 100.0 * self.hits / self.lookups

    @property
    def static_rate(self) -> float:
        """Per cent."""
        return 100.0 * self.static / self.lookups


class Served:
    """A store of one table, asked as a model with 26 features would. A context manager."""

    def __init__(self, folder: Path, ids: Array, made: MadeTable, dram_bytes: int | None) -> None:
        self.folder, self.ids = folder, ids
        self.store = TieredStore.open(folder, made.tables, dram_bytes=dram_bytes)
        try:
            self.store.load(made)
            features = [LookupSpec(f"f{index}", made.name, "sum") for index in range(FEATURES)]
            self.plan = self.store.plan(features)
        except BaseException:
            self.store.close()
            raise
        self._offsets = np.arange(SAMPLES + 1)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    @property
    def capacity(self) -> int:
        """Rows that DRAM holds now."""
        return self.store.stats().rows["dram"]

    def look_up(self, numbers: Array) -> tuple[int, int]:
        """A batch of row numbers (13,312,): hits in DRAM, and hits of the tiers below it."""
        parts = self.ids[numbers].reshape(FEATURES, SAMPLES)
        result = self.plan.lookup(SAMPLES, [Jagged(part, self._offsets) for part in parts])
        if result.counts.absent or result.counts.unresolved:
            raise AssertionError(f"rows that are there were not found: {result.counts}")
        return result.counts.dram, result.counts.ssd

    def check(self, numbers: Array) -> None:
        """Raises AssertionError unless a batch gives what was put in."""
        parts = self.ids[numbers].reshape(FEATURES, SAMPLES)
        result = self.plan.lookup(SAMPLES, [Jagged(part, self._offsets) for part in parts])
        for output, expected in zip(result.outputs, numbers.reshape(FEATURES, SAMPLES), strict=True):
            if not np.array_equal(output, rows_of_numbers(expected, DIM)):
                raise AssertionError("a lookup gave other rows than were put in: the figures would mean nothing")

    def window(self, traffic: Traffic, batches: int) -> Window:
        """Looks up batches and counts. Promotions are done after each."""
        window = Window()
        hottest = np.zeros(len(self.ids), np.bool_)
        hottest[traffic.numbering[: self.capacity]] = True
        for numbers in traffic.batches(batches):
            hits, below = self.look_up(numbers)
            self.store.drain()
            window.lookups += hits + below
            window.hits += hits
            window.static += int(hottest[numbers].sum())
        return window

    def fill(self, traffic: Traffic, lookups: int) -> None:
        """Looks up about so many ids, and counts nothing."""
        left = -(-lookups // BATCH)
        while left > 0:
            for numbers in traffic.batches(min(left, 64)):
                self.look_up(numbers)
                self.store.drain()
            left -= 64


def points(run: Run, claim: str, ours: list[float], other: list[float], against: str, below: float, note: str) -> None:
    """A row of hit rates in per cent; the target is a number of points below the other."""
    target = (median(other) - below) / median(other) if other else None
    run.report.pairs(claim, ours, other, against, unit="% hits", target=target, note=note)


def change_and_scan(run: Run, rows: int) -> None:
    """The hot set replaced at once, then one scan over all ids; seven times each."""
    ids = random_ids(rows, seed=5)
    repeats = 2 if run.quick else run.repeats
    batches = 10
    recovered: list[Window] = []
    early: list[Window] = []
    costs: list[tuple[float, float]] = []
    with Served(run.work / "changing", ids, MadeTable(ids, DIM), rows * 4 * DIM // TENTH) as served:
        traffic = Traffic(zipf(rows))
        served.check(traffic.numbers(BATCH))
        served.fill(traffic, _FILL_CAPACITIES * rows // TENTH)
        capacity = served.capacity
        try:
            for _ in range(repeats):
                if recovered and run.is_late("further repeats of a new hot set"):
                    break
                traffic.replace_hot_set()
                served.fill(traffic, 5 * capacity)
                early.append(served.window(traffic, batches))
                served.fill(traffic, (AFTER_CAPACITIES - 5) * capacity - batches * BATCH)
                recovered.append(served.window(traffic, batches))
            for _ in range(repeats):
                if costs and run.is_late("further repeats of a scan"):
                    break
                before = served.window(traffic, 2 * batches).rate
                scan = np.random.default_rng(len(costs)).permutation(rows)
                for start in range(0, rows - BATCH + 1, BATCH):
                    served.look_up(scan[start : start + BATCH])
                    served.store.drain()
                costs.append((served.window(traffic, batches).rate, before))
        finally:
            size = f"{rows:,} rows, {capacity:,} in DRAM, Zipf"
            points(
                run,
                f"hot set replaced, after lookups worth {AFTER_CAPACITIES}x the capacity",
                [window.rate for window in recovered],
                [window.static_rate for window in recovered],
                "the new optimum",
                BELOW_NEW_OPTIMUM,
                f"at most {BELOW_NEW_OPTIMUM:g} points below; {size}",
            )
            run.report.pairs(
                "hot set replaced, after lookups worth 5x the capacity",
                [window.rate for window in early],
                [window.static_rate for window in early],
                "the new optimum",
                unit="% hits",
            )
            points(
                run,
                "after one scan over all ids",
                [after for after, _ in costs],
                [before for _, before in costs],
                "before it",
                SCAN_COST,
                f"at most {SCAN_COST:g} point below; {size}",
            )


def hit_rate(run: Run, tenth: Served, popularity: Popularity) -> None:
    """Steady traffic, after lookups worth ten times the capacity."""
    traffic = Traffic(popularity)
    tenth.check(traffic.numbers(BATCH))
    tenth.fill(traffic, _FILL_CAPACITIES * len(tenth.ids) // TENTH)
    windows: list[Window] = []
    try:
        for _ in range(2 if run.quick else run.repeats):
            windows.append(tenth.window(traffic, 5 if run.quick else _WINDOW_BATCHES))  # noqa: PERF401 - kept if interrupted
    finally:
        note = f"at most {BELOW_STATIC:g} point below; {tenth.capacity:,} of {len(tenth.ids):,} rows in DRAM"
        points(
            run,
            f"a tenth in DRAM, {popularity.name}",
            [window.rate for window in windows],
            [window.static_rate for window in windows],
            "best static choice",
            BELOW_STATIC,
            note,
        )
        whole_budget = 100.0 * popularity.best_static(len(tenth.ids) // TENTH)
        run.report.pairs(
            f"a tenth in DRAM, {popularity.name}",
            [window.rate for window in windows],
            [whole_budget] * len(windows),
            "best static choice if a row cost its bytes alone",
            unit="% hits",
        )


def speed(run: Run, tenth: Served, whole: Served, popularity: Popularity) -> None:
    """Ids a second and tails of a batch, beside everything in DRAM. What is not in DRAM comes from the disk."""
    traffic = Traffic(popularity)
    times: dict[str, list[float]] = {"ours": [], "all in DRAM": []}
    count = 5 if run.quick else _WINDOW_BATCHES

    def contestant(name: str, served: Served) -> Callable[[int], float]:
        def lookups(turn: int) -> float:
            batches = traffic.batches(count)
            drop_page_cache(served.folder)
            taken = []
            for numbers in batches:
                began = time.perf_counter()
                served.look_up(numbers)
                taken.append(time.perf_counter() - began)
            if turn > 0:
                times[name].extend(taken)
            return count * BATCH / sum(taken)

        return lookups

    samples = run.interleave(
        {"ours": contestant("ours", tenth), "all in DRAM": contestant("all in DRAM", whole)},
        max_s=60.0,
        quiet_cores=QUIET_CORES_DISK,
    )
    rounds = len(samples.rounds)
    what = f"a tenth in DRAM, {popularity.name}, 1 thread"
    run.report.pairs(
        what,
        [rate * MIDS for rate in samples.values("ours")],
        [IDS_PER_S * MIDS] * len(samples.kept),
        "bound",
        unit="M ids/s",
        target=1.0,
        dropped=samples.dropped,
        disturbed=not samples.is_clean,
    )
    run.report.compare(what, samples, "all in DRAM", unit="M ids/s", scale=MIDS)
    if rounds:
        by_round = {
            name: np.array(taken[: rounds * count]).reshape(rounds, count) * MS for name, taken in times.items()
        }
        for share in (50, 99):
            ours, other = (np.percentile(by_round[name], share, axis=1).tolist() for name in times)
            run.report.pairs(
                f"p{share} of a batch of {BATCH:,} ids, a tenth in DRAM, {popularity.name}",
                ours,
                other,
                "all in DRAM",
                unit="ms",
                less_is_better=True,
            )
    run.settle(samples)


if __name__ == "__main__":
    script("tiered")
