"""Claims: sums over bags of ten ids, beside FBGEMM, torch's EmbeddingBag and the sum without any index.

The peers are given dense row numbers. At 16 values a row is one cache line, and the probe that an exact id needs costs
as much as the row: there a dense index wins, and the target says by how much at most. At 128 the rows decide.

    python -m benchmarks.pooling            # 10 M ids, two widths: about two minutes, 16 GB of memory
    python -m benchmarks.pooling --quick
"""

from __future__ import annotations

import numpy as np

from benchmarks._limits import RowLimit
from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.dram_world import Batches, FeatureLookup, draw, filled_table, most_bytes, popularities
from benchmarks.measure import Contestant, median, per_second
from benchmarks.peers import PeerMissingError
from benchmarks.peers.children import torch_children
from benchmarks.peers.process import PeerProcess
from benchmarks.traffic import BATCH, random_ids
from storage._table import Table

PER_BAG = 10
BAGS = BATCH // PER_BAG
IDS = BAGS * PER_BAG
# Targets of the ratio to FBGEMM, by width.
OVER_FBGEMM = {16: 0.75, 128: 1.2}
FBGEMM = {"FBGEMM": "fbgemm", "FBGEMM for inference": "fbgemm_inference"}
MIDS = 1e-6


def measure(run: Run) -> None:
    """Measures every claim of pooling, width by width."""
    rows = run.size(10_000_000, 400_000)
    with torch_children(run) as (plain, huge, fbgemm):
        ids = random_ids(rows)
        for dim in OVER_FBGEMM:
            if run.is_late(f"d{dim}") or run.lacks_memory(most_bytes(rows, dim), f"d{dim}"):
                break
            table = filled_table(ids, dim)
            kinds = [draw(ids, popularity, size=IDS) for popularity in popularities(rows)]
            for batches in kinds:
                check_sums(table, batches)
            against_fbgemm(run, table, kinds, fbgemm)
            against_the_limit(run, table, kinds, plain)
            against_torch(run, table, kinds, "torch EmbeddingBag, 2 MB pages", huge)


def check_sums(table: Table, batches: Batches) -> None:
    """Raises AssertionError unless the first batch gives the sums of its rows."""
    sums = batches.numbers[0].astype(np.float32).reshape(BAGS, PER_BAG).astype(np.float64).sum(axis=1)
    pooled = FeatureLookup([table], [batches], PER_BAG).run(0)[0]
    if not np.allclose(pooled, sums[:, None], rtol=1e-5):
        raise AssertionError("a lookup gave other sums than were put in: the figures would mean nothing")


def ours(run: Run, table: Table, batches: Batches) -> Contestant:
    """Returns a contestant that sums by the store, with a new output each time."""
    return per_second(FeatureLookup([table], [batches], PER_BAG).run, IDS, **run.steady)


def against_fbgemm(run: Run, table: Table, kinds: list[Batches], process: PeerProcess | None) -> None:
    """Compares with FBGEMM's two classes; the target is for the faster one."""
    if process is None:
        return
    rows = table.size()
    try:
        for name, kind in FBGEMM.items():
            version = process.build(kind, rows=rows, dim=table.dim)
            run.report.remark(f"{name}: version {version}, one thread, row numbers instead of ids")
    except PeerMissingError as missing:
        run.report.remark(f"FBGEMM: {missing}")
        return
    for batches in kinds:
        process.take(batches.name, batches.numbers, run.work, per_bag=PER_BAG)
        contestants = {"ours": ours(run, table, batches)}
        contestants |= {
            name: process.contestant(kind, batches.name, IDS, **run.steady) for name, kind in FBGEMM.items()
        }
        samples = run.interleave(contestants)
        faster = max(FBGEMM, key=lambda name: median(samples.values(name)))
        note = "a dense index wins here" if OVER_FBGEMM[table.dim] < 1 else ""
        for name in FBGEMM:
            run.report.compare(
                f"sums of {PER_BAG} ids, d{table.dim} {batches.name}, 1 thread",
                samples,
                name,
                unit="M ids/s",
                scale=MIDS,
                target=OVER_FBGEMM[table.dim] if name == faster else None,
                note=note if name == faster else "",
            )
        run.settle(samples)
    for kind in FBGEMM.values():
        process.drop(kind)


def against_the_limit(run: Run, table: Table, kinds: list[Batches], process: PeerProcess) -> None:
    """Compares with the sum of rows whose numbers are known, and with torch, which computes that."""
    limit = RowLimit(table.size(), table.dim)
    run.report.remark(f"limit: a loop of benchmarks/native/limits, {limit.isa}, row numbers instead of ids")
    offsets, out = np.arange(0, IDS + 1, PER_BAG), np.empty((BAGS, table.dim), np.float32)
    jobs = {
        batches.name: per_second(
            lambda turn, b=batches: limit.pool(b.numbers[turn % len(b)], offsets, out),  # type: ignore[misc]
            IDS,
            **run.steady,
        )
        for batches in kinds
    }
    against_torch(run, table, kinds, "torch EmbeddingBag", process, jobs)


def against_torch(
    run: Run,
    table: Table,
    kinds: list[Batches],
    name: str,
    process: PeerProcess,
    limits: dict[str, Contestant] | None = None,
) -> None:
    """Compares with torch's EmbeddingBag, and with the limit for each kind of traffic, if given."""
    version = process.build("bag", rows=table.size(), dim=table.dim)
    run.report.remark(f"torch: version {version}, one thread, row numbers instead of ids")
    for batches in kinds:
        process.take(batches.name, batches.numbers, run.work, per_bag=PER_BAG)
        contestants = {"ours": ours(run, table, batches)}
        contestants[name] = process.contestant("bag", batches.name, IDS, **run.steady)
        if limits is not None:
            contestants["dense limit"] = limits[batches.name]
        samples = run.interleave(contestants)
        for other in list(contestants)[1:]:
            what = f"sums of {PER_BAG} ids, d{table.dim} {batches.name}, 1 thread"
            run.report.compare(what, samples, other, unit="M ids/s", scale=MIDS)
        run.settle(samples)
    process.drop("bag")


if __name__ == "__main__":
    script("pooling")
