"""Claims: a table ten times its DRAM budget is served at the hit rate of the best static choice.

Traffic follows Zipf(1.05), and the reuse that production shows (dlrm_reuse_2022.json). Claims about the cache
count lookups, not time: after each batch the promotions are waited for, so the figures do not depend on the machine.
The best static choice holds the most popular rows, as many as DRAM held, and is judged on the same lookups.

A small table begins with nothing known, and everything must be learned. The large one begins as a served version does,
with the use counts that training left.

    python -m benchmarks.tiered            # 1 M and 10 M rows: about four minutes, 6 GB of memory, 4 GB of disk
    python -m benchmarks.tiered --quick
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable

import numpy as np

from benchmarks import row_memory
from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.disk_world import MadeTable, drop_page_cache
from benchmarks.gauge import QUIET_CORES_DISK
from benchmarks.measure import median
from benchmarks.served_table import Served, Window
from benchmarks.traffic import BATCH, Array, Traffic, random_ids
from loadtest.popularity import production_reuse, zipf

DIM = 32
TENTH = 10
BELOW_STATIC = 1.0
BELOW_NEW_OPTIMUM = 2.0
AFTER_CAPACITIES = 30
SCAN_COST = 1.0
IDS_PER_S = 1e6
MIDS = 1e-6
MS = 1e3
_LEARN_CAPACITIES = 40
_SEEN_AT_EDGE = 64
_WINDOW_BATCHES = 40


def measure(run: Run) -> None:
    """Measures what a small cache learns, and the hit rate and speed of a large one."""
    rows = run.size(10_000_000, 200_000)
    what_is_learned(run, max(10_000, min(1_000_000, rows // 3)))
    if run.is_late("hit rate and speed of a large table"):
        return
    ids = random_ids(rows)
    row_memory.of_a_table(run, ids)
    with Served(run.work / "whole", ids, MadeTable(ids, DIM), None) as whole:
        row_memory.of_a_store(run, whole, "a store that is all in DRAM")
        for popularity in (zipf(rows), production_reuse(rows)):
            if run.is_late(f"{popularity.name}, hit rate and speed of a large table"):
                break
            traffic = Traffic(popularity)
            counts = trained_counts(traffic, rows // TENTH)
            folder = run.work / "tenth"
            with Served(folder, ids, MadeTable(ids, DIM, counts=counts), rows * 4 * DIM // TENTH) as tenth:
                tenth.check(traffic.numbers(BATCH))
                tenth.fill(traffic, 2 * rows // TENTH)
                hit_rate(run, tenth, traffic, "begun with the counts of training")
                speed(run, tenth, whole, traffic)
                row_memory.of_a_store(run, tenth, f"a store within its budget, {popularity.name}")
            shutil.rmtree(folder)


def trained_counts(traffic: Traffic, capacity: int) -> Array:
    """Returns how often training would have seen each row, (N,).

    The coldest row that fits was seen _SEEN_AT_EDGE times.
    """
    weights = traffic.popularity.weights()
    counts = np.empty(len(weights), np.uint32)
    counts[traffic.numbering] = np.minimum(weights / weights[capacity - 1] * _SEEN_AT_EDGE, 1e6)
    return counts


def points(run: Run, claim: str, ours: list[float], other: list[float], against: str, below: float | None) -> None:
    """Adds a row of hit rates.

    below: how many points ours may lie below the other; None when the row has no target.
    """
    target = (median(other) - below) / median(other) if other and below is not None else None
    note = "" if below is None else f"within {below:g} point{'s' if below != 1 else ''}"
    run.report.pairs(claim, ours, other, against, unit="%", target=target, note=note)


def what_is_learned(run: Run, rows: int) -> None:
    """Measures steady traffic, the hot set replaced at once, and one scan over all ids, repeat by repeat."""
    ids = random_ids(rows, seed=5)
    with Served(run.work / "learning", ids, MadeTable(ids, DIM), rows * 4 * DIM // TENTH) as served:
        for popularity in (production_reuse(rows), zipf(rows)):
            traffic = Traffic(popularity)
            served.check(traffic.numbers(BATCH))
            served.fill(traffic, _LEARN_CAPACITIES * served.capacity)
            hit_rate(run, served, traffic, f"learned from lookups worth {_LEARN_CAPACITIES}x the capacity")
        new_hot_set(run, served, traffic)
        scan(run, served, traffic)


def hit_rate(run: Run, served: Served, traffic: Traffic, note: str) -> None:
    """Measures the hit rate of steady traffic."""
    windows: list[Window] = []
    rows = len(served.ids)
    try:
        for _ in range(2 if run.quick else run.repeats):
            if windows and run.is_late(f"further repeats of the hit rate, {traffic.popularity.name}"):
                break
            windows.append(served.window(traffic, 5 if run.quick else _WINDOW_BATCHES))
    finally:
        ours = [window.rate for window in windows]
        claim = f"hit rate, {served.capacity:,} of {rows:,} rows in DRAM, {traffic.popularity.name}"
        points(
            run,
            f"{claim}, {note}",
            ours,
            [window.static_rate for window in windows],
            "best static choice",
            BELOW_STATIC,
        )
        for_bytes_alone = 100.0 * traffic.popularity.best_static(rows // TENTH)
        run.report.pairs(
            claim, ours, [for_bytes_alone] * len(ours), "best static choice, a row costing its bytes alone", unit="%"
        )


def new_hot_set(run: Run, served: Served, traffic: Traffic) -> None:
    """Assigns every rank to another row at once, and measures how far the hit rate recovers."""
    early: list[Window] = []
    late: list[Window] = []
    capacity = served.capacity
    batches = 4 if run.quick else 10
    try:
        for _ in range(2 if run.quick else run.repeats):
            if late and run.is_late("further repeats of a new hot set"):
                break
            traffic.replace_hot_set()
            served.fill(traffic, 5 * capacity)
            early.append(served.window(traffic, batches))
            served.fill(traffic, (AFTER_CAPACITIES - 5) * capacity - batches * BATCH)
            late.append(served.window(traffic, batches))
    finally:
        for times, windows, below in ((AFTER_CAPACITIES, late, BELOW_NEW_OPTIMUM), (5, early, None)):
            points(
                run,
                f"hot set replaced, after lookups worth {times}x the capacity of {capacity:,} rows, Zipf",
                [window.rate for window in windows],
                [window.static_rate for window in windows],
                "the new optimum",
                below,
            )


def scan(run: Run, served: Served, traffic: Traffic) -> None:
    """Looks up every id once, in random order, and measures how much hit rate is lost just afterwards."""
    pairs: list[tuple[float, float]] = []
    batches = 4 if run.quick else 10
    try:
        for turn in range(2 if run.quick else run.repeats):
            if pairs and run.is_late("further repeats of a scan"):
                break
            before = served.window(traffic, 2 * batches).rate
            every = np.random.default_rng(turn).permutation(len(served.ids))
            for start in range(0, len(every) - BATCH + 1, BATCH):
                served.look_up(every[start : start + BATCH])
                served.store.drain()
            pairs.append((served.window(traffic, batches).rate, before))
    finally:
        points(
            run,
            f"hit rate after one scan over all {len(served.ids):,} ids, Zipf",
            [after for after, _ in pairs],
            [before for _, before in pairs],
            "before it",
            SCAN_COST,
        )


def speed(run: Run, tenth: Served, whole: Served, traffic: Traffic) -> None:
    """Measures ids a second and tail latencies of a batch, beside everything in DRAM. Other rows come from the disk."""
    popularity = traffic.popularity
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
