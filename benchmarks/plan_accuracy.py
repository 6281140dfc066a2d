"""Claim: the plan for a budget agrees with what is measured on traffic that the plan has not seen.

Three tables of two row sizes share a budget; lookups of 1 to 128 samples draw ids by Zipf, some of them absent. In
each round the store records traffic at its budget and predicts four budgets; then each is set, settles, and is measured
on other traffic. Hit rates are counted. Times are processor time of the thread that looks up, so that other work on the
machine counts less; rows are read from the page cache. Budgets come in another order in each round, and medians over
the rounds are compared. The plan of a version by its use counts, from traffic that was drawn separately, is shown too.

    python -m benchmarks.plan_accuracy            # some four minutes
    python -m benchmarks.plan_accuracy --quick
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.measure import median
from benchmarks.traffic import Array, Traffic, random_ids
from loadtest.popularity import zipf
from storage.checkpoint.tables import Shard
from storage.features import Jagged
from storage.specs import LookupSpec, TableSpec
from storage.tiers import lookup_plan
from storage.tiers.budget_report import budget_report, read_report
from storage.tiers.lookup_plan import LookupPlan
from storage.tiers.planning.budget import row_cost
from storage.tiers.planning.use_codes import codes_of_uses
from storage.tiers.planning.version_forecast import version_forecast
from storage.tiers.tiered import TieredStore

# name, dim, rows, exponent, ids of a sample
TABLES = (("user", 16, 200_000, 0.8, 1), ("item", 16, 60_000, 1.05, 12), ("tag", 32, 20_000, 1.1, 4))
SHARE = 0.05  # share of all rows that the present budget holds
BUDGETS = (0.5, 1.0, 2.0, 4.0)  # as multiples of the present budget
ABSENT = 0.05
POINTS, OF_TIME = 2.0, 0.25
MOST_SAMPLES = 128
TRAINED = 300_000
BALANCE_EVERY = 60


class Version:
    """A version whose use counts come from training traffic; its rows are random."""

    path = Path("made up to measure")
    snapshot = "0" * 32
    equals = None

    def __init__(self, trained: int) -> None:
        self.tables = tuple(TableSpec(name, dim, "fp32", rows) for name, dim, rows, _, _ in TABLES)
        self.ids = [np.sort(random_ids(spec.rows, seed=number + 1)) for number, spec in enumerate(self.tables)]
        self.traffic = [
            Traffic(zipf(rows, exponent), seed=10 + n) for n, (_, _, rows, exponent, _) in enumerate(TABLES)
        ]
        self._codes = [
            codes_of_uses(np.bincount(traffic.numbers(trained * ids), minlength=rows))
            for traffic, (_, _, rows, _, ids) in zip(self.traffic, TABLES, strict=True)
        ]

    def shards(self, table: str) -> Iterator[Shard]:
        number = [spec.name for spec in self.tables].index(table)
        rng = np.random.default_rng(number)
        for start in range(0, len(self.ids[number]), 1 << 16):
            part = slice(start, start + (1 << 16))
            ids = self.ids[number][part]
            rows = rng.standard_normal((len(ids), self.tables[number].dim)).astype(np.float32)
            yield Shard(ids, rows, self._codes[number][part])

    def uses(self, table: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        number = [spec.name for spec in self.tables].index(table)
        yield self.ids[number], self._codes[number]

    def table_digest(self, table: str) -> str:
        return "made"


class Requests:
    """Draws lookups from the traffic, and counts what they found."""

    def __init__(self, version: Version, store: TieredStore) -> None:
        self._version, self._store = version, store
        self._plan: LookupPlan = store.plan([LookupSpec(name, name, "sum", 0) for name, *_ in TABLES])
        self._rng = np.random.default_rng(5)
        self._turn = 0

    def run(self, samples: int) -> tuple[float, float, float]:
        """Looks up `samples` samples; returns the hit rate, mean milliseconds and mean ids of a lookup."""
        dram = ssd = 0
        times: list[float] = []
        sizes: list[int] = []
        left = samples
        while left > 0:
            count = int(self._rng.integers(1, MOST_SAMPLES + 1))
            features = [self._ids(number, count) for number in range(len(TABLES))]
            began = time.thread_time_ns()
            counts = self._plan.lookup(count, features).counts
            times.append((time.thread_time_ns() - began) / 1e6)
            sizes.append(sum(len(feature.values) for feature in features))
            dram, ssd, left = dram + counts.dram, ssd + counts.ssd, left - count
            self._store.drain()
            self._turn += 1
            if self._turn % BALANCE_EVERY == 0:
                self._store.balance()
        return dram / max(1, dram + ssd), float(np.mean(times)), float(np.mean(sizes))

    def _ids(self, number: int, samples: int) -> Jagged:
        each = TABLES[number][4]
        ids: Array = self._version.ids[number][self._version.traffic[number].numbers(samples * each)]
        absent = self._rng.random(len(ids)) < ABSENT
        ids[absent] = -2 - self._rng.zipf(1.3, int(absent.sum())) % 100_000
        return Jagged(ids, np.arange(samples + 1) * each)


def measure(run: Run) -> None:
    """Adds the rows of this benchmark to the run's report."""
    lookup_plan.now_ns = time.thread_time_ns
    samples = 10_000 if run.quick else 30_000
    version = Version(TRAINED // 10 if run.quick else TRAINED)
    present = int(sum(row_cost(spec) * spec.rows for spec in version.tables) * SHARE)
    published = version_forecast(version, None).forecast
    found: dict[float, list[dict[str, float]]] = {part: [] for part in BUDGETS}
    with TieredStore.open(run.work / "store", version.tables, dram_bytes=present) as store:
        store.load(version)
        requests = Requests(version, store)
        for turn in range(2 if run.quick else 5):
            if turn and run.is_late("rounds"):
                break
            store.set_dram_bytes(present)
            store.wait_filled()
            requests.run(samples)
            requests.run(samples)
            known = read_report(budget_report(store))
            for part in BUDGETS if turn % 2 == 0 else BUDGETS[::-1]:
                budget = int(present * part)
                shares = known.forecast.split(budget)
                rate, (low, high) = known.forecast.hit_rate_of(shares), known.forecast.hit_range_of(shares)
                store.set_dram_bytes(budget)
                store.wait_filled()
                requests.run(int(samples * max(1.0, part)))
                seen, ms, ids = requests.run(samples)
                assert known.costs is not None
                if known.costs.doubt:
                    run.report.remark(f"no time was predicted: {known.costs.doubt}")
                row = {
                    "rate": rate,
                    "low": low,
                    "high": high,
                    "seen": seen,
                    "ms": ms,
                    "version": published.hit_rate(budget),
                }
                row |= {"said_ms": known.costs.lookup_ms(ids, rate)}
                found[part].append(row)
    for part, rows in found.items():
        _add(run, part, rows)


def _add(run: Run, part: float, rows: list[dict[str, float]]) -> None:
    what = f"{part:g} x the budget"
    said, seen = [row["rate"] * 100 for row in rows], [row["seen"] * 100 for row in rows]
    inside = sum(row["low"] <= row["seen"] <= row["high"] for row in rows)
    low, high = median([row["low"] for row in rows]), median([row["high"] for row in rows])
    worst = max(abs(a - b) for a, b in zip(said, seen, strict=True))
    note = f"{low:.1%} to {high:.1%}: {inside} of {len(rows)} lie in it; off by {worst:.2f} points at most"
    run.report.pairs(f"{what}: hit rate predicted", said, seen, "measured", unit="%", note=note)
    miss = f"{what}: points between them, beside {POINTS:g} allowed"
    run.report.pairs(miss, [max(worst, 1e-3)], [POINTS], "allowed", unit="points", target=1.0, less_is_better=True)
    of_version = [row["version"] * 100 for row in rows]
    run.report.pairs(f"{what}: hit rate by the version's use counts", of_version, seen, "measured", unit="%")
    said_ms, ms = [row["said_ms"] for row in rows], [row["ms"] for row in rows]
    off = abs(median([a / b for a, b in zip(said_ms, ms, strict=True)]) - 1)
    run.report.pairs(f"{what}: a lookup predicted", said_ms, ms, "measured", unit="ms of processor time")
    miss = f"{what}: error of the time, beside {OF_TIME:.0%} allowed"
    run.report.pairs(miss, [max(off, 1e-3)], [OF_TIME], "allowed", unit="of it", target=1.0, less_is_better=True)


if __name__ == "__main__":
    script("plan_accuracy")
