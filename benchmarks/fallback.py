"""Claim: a chain of fallbacks costs a lookup nothing while every id has a row, and what it costs where ids have none.

A model of 26 features of one id, of which eight have a chain of three levels: two other features and the mean. The same
store is asked by two plans, with the chains and without them, by turns. What is claimed is the processor time of a
lookup, at most 1.05 of that without chains where every id hits. Then a tenth and half of the ids of those features have
no row; the plan without chains reads zeros for them.

    python -m benchmarks.fallback            # batches of 1, 64 and 512 rows: about a minute
    python -m benchmarks.fallback --quick
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.disk_world import MadeTable
from benchmarks.measure import Contestant
from benchmarks.traffic import Array, random_ids
from storage.checkpoint.tables import Shard
from storage.features import Jagged
from storage.specs import LookupLevel, LookupSpec, TableSpec
from storage.tiers.lookup_plan import LookupPlan
from storage.tiers.tiered import TieredStore

FEATURES, CHAINED, DIM = 26, 8, 16
BATCHES = (1, 64, 512)
#: A lookup with chains takes at most this multiple of one without.
AT_MOST = 1.05
_REQUESTS = 32
_SHARES = {0.0: "every id hits", 0.1: "a tenth without a row", 0.5: "half without a row"}


class _Tables:
    """A table for each feature, and those of the means, with the interface of a published version."""

    path, snapshot, equals = MadeTable.path, "f" * 32, None

    def __init__(self, ids: Array) -> None:
        self._made = {name: MadeTable(ids, DIM, name=name) for name in (f"f{number}" for number in range(FEATURES))}
        for number in range(CHAINED):
            self._made[f"f{number}-mean"] = MadeTable(np.zeros(1, np.int64), DIM, name=f"f{number}-mean")

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return tuple(table.tables[0] for table in self._made.values())

    def shards(self, table: str) -> Iterator[Shard]:
        return self._made[table].shards(table)

    def uses(self, table: str) -> Iterator[tuple[Array, Array]]:
        return self._made[table].uses(table)

    def table_digest(self, table: str) -> str:
        return self._made[table].table_digest(table)


def specs(*, chains: bool) -> list[LookupSpec]:
    """Returns the features; the first ones have a chain of the two features after those and the mean."""
    found = []
    for number in range(FEATURES):
        levels: tuple[LookupLevel, ...] = ()
        if chains and number < CHAINED:
            others = (CHAINED + 2 * number, CHAINED + 2 * number + 1)
            levels = tuple(LookupLevel(f"f{each}", f"f{each}") for each in others)
            levels += (LookupLevel("", f"f{number}-mean"),)
        found.append(LookupSpec(f"f{number}", f"f{number}", "sum", fallback=levels))
    return found


def requests(ids: Array, batch: int, absent: float) -> list[list[Jagged]]:
    """Returns requests in which a share of the ids of features with a chain has no row."""
    rng = np.random.default_rng(batch)
    offsets, made = np.arange(batch + 1), []
    for _ in range(_REQUESTS):
        bags = []
        for number in range(FEATURES):
            values = rng.choice(ids, batch)
            if number < CHAINED:
                values = np.where(rng.random(batch) < absent, values ^ np.int64(1 << 62), values)
            bags.append(Jagged(values, offsets))
        made.append(bags)
    return made


def asker(plan: LookupPlan, made: list[list[Jagged]], batch: int, piece_s: float) -> Contestant:
    """Returns a contestant that looks up requests, into arrays that are kept, as a session does.

    Its figure is the processor time of a lookup in microseconds.
    """
    into = plan.arrays(batch)

    def run(_: int) -> float:
        started, lookups, ends = time.thread_time_ns(), 0, time.monotonic() + piece_s
        while lookups < _REQUESTS or time.monotonic() < ends:
            plan.lookup(batch, made[lookups % _REQUESTS], None, 0, into)
            lookups += 1
        return (time.thread_time_ns() - started) / lookups / 1000

    return run


def measure(run: Run) -> None:
    """Measures lookups with chains and without, for each size of a batch and each share of ids without a row."""
    ids = random_ids(run.size(200_000, 20_000))
    tables = _Tables(ids)
    with TieredStore.open(run.work / "store", tables.tables, dram_bytes=None) as store:
        store.load(tables)
        plans = {"ours": store.plan(specs(chains=True)), "without": store.plan(specs(chains=False))}
        for absent, what in _SHARES.items():
            for batch in BATCHES:
                if run.is_late(f"{what}, {batch} rows"):
                    return
                made = requests(ids, batch, absent)
                _check(plans, made[0], batch, absent)
                samples = run.interleave({name: asker(plan, made, batch, run.piece_s) for name, plan in plans.items()})
                run.report.compare(
                    f"lookup with chains of three, {what}, {batch} rows",
                    samples,
                    "without",
                    unit="us",
                    target=1 / AT_MOST if absent == 0.0 else None,
                    less_is_better=True,
                )
                run.settle(samples)


def _check(plans: dict[str, LookupPlan], bags: list[Jagged], batch: int, absent: float) -> None:
    """Raises AssertionError unless ids with a row read the same by both plans, and others a row by the chain."""
    ours, without = (plans[name].lookup(batch, bags) for name in ("ours", "without"))
    for number, (row, other) in enumerate(zip(ours.outputs, without.outputs, strict=True)):
        has = np.asarray(other.any(axis=1))
        if not np.array_equal(row[has], other[has]) or not np.all(row[~has].any(axis=1)):
            raise AssertionError(f"f{number}: a lookup with chains reads other rows: the figures would mean nothing")
    if bool(ours.fallback) != (ours.counts.absent > 0) or (absent == 0.0 and ours.counts.absent):
        raise AssertionError(f"the lookup found {ours.counts.absent} absent ids, expected a share of {absent}")


if __name__ == "__main__":
    script("fallback")
