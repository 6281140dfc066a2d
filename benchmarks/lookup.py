"""Claims: what a lookup in DRAM costs beside the machine's limit, torch and TorchRec, on one thread and on two.

The limit of an exact lookup is two cache misses an id. It is measured as 1 / (1 / probe + 1 / gather): ids without
rows, and rows without ids (benchmarks/native/limits). torch and TorchRec are given dense row numbers, so they need no
index at all. Ours against the limit writes into one output again and again, as the limit does; against peers every
call makes a new output, as theirs do.

    python -m benchmarks.lookup            # 10 M ids, four widths: about five minutes, 16 GB of memory
    python -m benchmarks.lookup --quick
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from benchmarks._limits import IndexLimit, RowLimit
from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.dram_world import (
    FEATURES,
    Batches,
    FeatureLookup,
    check_table,
    draw,
    filled_table,
    finder,
    most_bytes,
    popularities,
    rows_of_numbers,
)
from benchmarks.measure import Contestant, per_second, together
from benchmarks.peers import PeerMissingError
from benchmarks.peers.children import torch_children
from benchmarks.peers.process import PeerProcess
from benchmarks.traffic import BATCH, Array, random_ids
from storage._table import Lookup, Table

OF_LIMIT = 0.85
# Targets of the ratio to torch's nn.Embedding: by width for uniform ids, and for Zipf.
OVER_TORCH = {16: 1.0, 32: 1.0, 64: 1.3, 128: 1.3}
OVER_TORCH_ZIPF = 1.35
OVER_TORCHREC, OVER_TORCHREC_ZIPF = 2.3, 3.4
TWO_THREADS = 1.9
OVERHEAD_US = 0.6
MIDS = 1e-6


def measure(run: Run) -> None:
    """Measures every claim of DRAM lookups, width by width."""
    rows = run.size(10_000_000, 400_000)
    dims = (16, 64) if run.quick else (16, 32, 64, 128)
    with torch_children(run) as (plain, huge, torchrec):
        ids = random_ids(rows)
        overhead_of_a_call(run, ids[:100_000])
        for dim in dims:
            if run.is_late(f"d{dim}") or run.lacks_memory(most_bytes(rows, dim), f"d{dim}"):
                break
            table = filled_table(ids, dim)
            kinds = [draw(ids, popularity) for popularity in popularities(rows)]
            for batches in kinds:
                check_table(table, batches)
            against_the_limit(run, table, ids, kinds)
            against_torch(run, table, kinds, rows, plain, huge)
            del table
            against_torchrec(run, ids, dim, torchrec)


def overhead_of_a_call(run: Run, ids: Array) -> None:
    """Measures the fixed cost of a call, with a lookup of no ids."""
    table = filled_table(ids, 16)
    none, out, found = ids[:0], np.empty((0, 16), np.float32), np.empty(0, np.uint8)
    lookup = Lookup([table], [(0, 0, 0)])
    offsets, pooled = [np.zeros(1, np.int64)], [np.empty((0, 16), np.float32)]

    def call(_: int) -> None:
        for _ in range(1000):
            table.find(none, out, found)

    def feature(_: int) -> None:
        for _ in range(1000):
            lookup.begin(0, [none], offsets, pooled, [None])
            lookup.finish()

    samples = run.interleave(
        {"find": per_second(call, 1000, piece_s=run.piece_s), "lookup": per_second(feature, 1000, piece_s=run.piece_s)}
    )
    for claim, name, target in (
        ("overhead of a call of Table.find, before the first id", "find", 1.0),
        ("overhead of Lookup.begin and finish, one feature", "lookup", None),
    ):
        costs = [1e6 / calls for calls in samples.values(name)]
        run.report.pairs(
            claim,
            costs,
            [OVERHEAD_US] * len(costs),
            "bound",
            unit="us",
            target=target,
            less_is_better=True,
            dropped=samples.dropped,
        )
    run.settle(samples)


def against_the_limit(run: Run, table: Table, ids: Array, kinds: list[Batches]) -> None:
    """Compares find and copy with probe and gather, and two threads with one."""
    probe, gather = IndexLimit(ids), RowLimit(len(ids), table.dim)
    run.report.remark(f"limits: loops of benchmarks/native/limits, {probe.isa}")
    threads = min(2, os.cpu_count() or 1)
    for batches in kinds:
        work: dict[str, Callable[[int], object]] = {
            "ours": finder(table, batches),
            "probe": prober(probe, batches),
            "gather": gatherer(gather, batches),
        }
        contestants = {name: per_second(job, BATCH, **run.steady) for name, job in work.items()}
        samples = run.interleave(contestants)
        samples.add("limit", lambda figures: 1 / (1 / figures["probe"] + 1 / figures["gather"]))
        what = f"d{table.dim} {batches.name}"
        run.report.compare(
            f"find and copy, {what}, 1 thread", samples, "limit", unit="M ids/s", scale=MIDS, target=OF_LIMIT
        )
        run.report.compare(f"find and copy, {what}, 1 thread", samples, "gather", unit="M ids/s", scale=MIDS)
        run.settle(samples)
        if threads == 2:
            two_threads(run, table, batches)


def two_threads(run: Run, table: Table, batches: Batches) -> None:
    """Runs the same work twice at once, beside one of it."""

    def one() -> Contestant:
        return per_second(finder(table, batches), BATCH, **run.steady)

    samples = run.interleave({"ours": one(), "2 threads": together([one(), one()])})
    run.report.compare(
        f"2 threads over 1, d{table.dim} {batches.name}",
        samples,
        "ours",
        ours="2 threads",
        unit="M ids/s",
        scale=MIDS,
        target=TWO_THREADS,
    )
    run.settle(samples)


def prober(probe: IndexLimit, batches: Batches) -> Callable[[int], object]:
    """Returns a function that only looks up where ids are, without reading rows."""
    places = np.empty(batches.size, np.uint32)
    return lambda turn: probe.find(batches.ids[turn % len(batches)], places)


def gatherer(rows: RowLimit, batches: Batches) -> Callable[[int], object]:
    """Returns a function that copies rows whose numbers are known."""
    out = np.empty((batches.size, rows.dim), np.float32)
    return lambda turn: rows.gather(batches.numbers[turn % len(batches)], out)


def against_torch(
    run: Run, table: Table, kinds: list[Batches], rows: int, plain: PeerProcess, huge: PeerProcess
) -> None:
    """Compares the same lookups with torch and numpy, which are given row numbers."""
    peers = {"torch nn.Embedding": (plain, "embedding"), "numpy take": (plain, "numpy_take")}
    peers |= {"torch, 2 MB pages": (huge, "embedding"), "torch index_select, 2 MB pages": (huge, "index_select")}
    for process, kind in peers.values():
        version = process.build(kind, rows=rows, dim=table.dim)
        run.report.remark(f"{kind}: version {version}, one thread")
    for batches in kinds:
        for process in (plain, huge):
            process.take(batches.name, batches.numbers, run.work)
        contestants = {"ours": per_second(finder(table, batches, fresh_output=True), BATCH, **run.steady)}
        contestants |= {
            name: process.contestant(kind, batches.name, BATCH, **run.steady) for name, (process, kind) in peers.items()
        }
        samples = run.interleave(contestants)
        for name in peers:
            target = OVER_TORCH[table.dim] if batches.name == "uniform" else OVER_TORCH_ZIPF
            run.report.compare(
                f"find and copy, d{table.dim} {batches.name}, 1 thread",
                samples,
                name,
                unit="M ids/s",
                scale=MIDS,
                target=target if name == "torch nn.Embedding" else None,
            )
        run.settle(samples)
    for process, kind in peers.values():
        process.drop(kind)


def against_torchrec(run: Run, ids: Array, dim: int, process: PeerProcess | None) -> None:
    """Compares 26 features of one id, in one call, with TorchRec's EmbeddingBagCollection and the FBGEMM under it."""
    if process is None:
        return
    rows = len(ids) // FEATURES
    parts = [ids[feature * rows : (feature + 1) * rows] for feature in range(FEATURES)]
    peers = {"TorchRec EmbeddingBagCollection": "torchrec", "FBGEMM": "fbgemm"}
    if run.quick:
        peers.pop("FBGEMM")
    elif len(ids) * dim * 4 > 3 << 30:
        peers.pop("FBGEMM")  # a third copy of the rows would not fit beside the others
    try:
        for name, kind in peers.items():
            version = process.build(kind, rows=rows, dim=dim, tables=FEATURES)
            run.report.remark(f"{name}: version {version}, one thread, row numbers instead of ids")
    except PeerMissingError as missing:
        run.report.remark(f"TorchRec: {missing}")
        return
    tables = [filled_table(part, dim) for part in parts]
    for popularity in popularities(rows):
        drawn = [draw(part, popularity, count=40, size=BATCH // FEATURES, seed=seed) for seed, part in enumerate(parts)]
        lookup = FeatureLookup(tables, drawn)
        for index, pooled in enumerate(lookup.run(0)):
            if not np.array_equal(pooled, rows_of_numbers(drawn[index].numbers[0], dim)):
                raise AssertionError(f"feature {index} gave other rows than were put in")
        numbers = np.stack([each.numbers for each in drawn], axis=1).reshape(40, BATCH)
        process.take(popularity.name, numbers, run.work)
        contestants = {"ours": per_second(lookup.run, BATCH, **run.steady)}
        contestants |= {
            name: process.contestant(kind, popularity.name, BATCH, **run.steady) for name, kind in peers.items()
        }
        samples = run.interleave(contestants)
        target = OVER_TORCHREC if popularity.name == "uniform" else OVER_TORCHREC_ZIPF
        for name in peers:
            run.report.compare(
                f"26 features, d{dim} {popularity.name}, 1 thread",
                samples,
                name,
                unit="M ids/s",
                scale=MIDS,
                target=target if name.startswith("TorchRec") else None,
            )
        run.settle(samples)
    for kind in peers.values():
        process.drop(kind)


if __name__ == "__main__":
    script("lookup")
