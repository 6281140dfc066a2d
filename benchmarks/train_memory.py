"""Claim about ids that have no row yet: a filter counts a billion of them in 2 GiB, and admits few too early.

Every id is new, which is the worst case: nothing is admitted rightly, and each id fills the filter further.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.catalog import Run
from benchmarks.machine import rss_bytes
from benchmarks.traffic import Array
from trainer.admission import BloomAdmission
from trainer.embedding import EmbeddingTable

IDS, QUICK_IDS = 100_000_000, 2_000_000
ADMIT_AFTER, FALSE_RATE = 2, 0.01
DIM = 16
BATCH = 65_536
#: Bytes of the filter for each id that it will see: 2 GiB for a billion.
BYTES_PER_ID = 2 * 2**30 / 1e9
#: Configured rate by measured rate: what chance allows for the fresh ids of a full run.
AS_CONFIGURED = 0.95
# Share of ids that come on top, to measure the rate: few enough to leave the filter as it is.
_FRESH = 400
_EXACT_IDS = 10_000_000
_EXACT_BYTES = 100
_MIB = 2**-20


def memory(run: Run) -> None:
    """Shows distinct ids to a table with a filter, each once, then fresh ids, then some ids a second time."""
    count = run.size(IDS, QUICK_IDS)
    exact = min(count, _EXACT_IDS)
    needed = int(2 * BYTES_PER_ID * count) + exact * _EXACT_BYTES
    if run.lacks_memory(needed, "memory"):
        return
    exact_bytes = exact_counts_bytes(exact) * count / exact
    resident = rss_bytes(os.getpid())
    table = filtered_table(count)
    began = time.perf_counter()
    see(table, 0, count)
    seconds = time.perf_counter() - began
    resident = rss_bytes(os.getpid()) - resident
    early = table.size()
    fresh = count // _FRESH
    see(table, count, count + fresh)
    rate = (table.size() - early) / fresh
    check_none_late(table)
    held = table.native.filter_bytes
    what = f"{count:,} distinct ids, admit_after {ADMIT_AFTER}, false_rate {FALSE_RATE}"
    bound = BYTES_PER_ID * count
    run.report.pairs(
        f"{what}: memory of the filter",
        [held * _MIB],
        [bound * _MIB],
        "2 GiB a billion",
        unit="MiB",
        target=1.0,
        less_is_better=True,
    )
    run.report.pairs(
        f"{what}: memory of the filter",
        [held * _MIB],
        [exact_bytes * _MIB],
        "exact counters",
        unit="MiB",
        less_is_better=True,
    )
    run.report.pairs(
        f"{what}: {fresh:,} fresh ids, share admitted too early",
        [rate * 100],
        [FALSE_RATE * 100],
        "configured",
        unit="%",
        target=AS_CONFIGURED,
        less_is_better=True,
    )
    run.report.remark(
        f"memory: {seconds / count * 1e9:.0f} ns an id, batches of {BATCH:,}; the process grew by "
        f"{resident * _MIB:,.0f} MiB, {(table.memory_bytes() - held) * _MIB:,.0f} MiB of that for rows and buffers; "
        f"{early:,} rows came early on the way ({early / count:.2%} of the ids)"
    )
    run.report.remark(f"memory: exact counters measured with {exact:,} ids, {exact_bytes / count:.0f} bytes an id")


def filtered_table(expected_ids: int) -> EmbeddingTable:
    """Returns an empty table that admits by a filter."""
    return EmbeddingTable("t", DIM, admit_after=ADMIT_AFTER, admission=BloomAdmission(expected_ids, FALSE_RATE))


def exact_counts_bytes(count: int) -> int:
    """Returns the bytes of a table in which so many ids wait for their rows, counted exactly."""
    table = EmbeddingTable("t", DIM, admit_after=ADMIT_AFTER)
    see(table, 0, count)
    if table.waiting() != count or table.size():
        raise AssertionError(f"{table.waiting():,} ids wait of {count:,}: no figure counts")
    return table.memory_bytes()


def see(table: EmbeddingTable, start: int, end: int) -> None:
    """Looks the ids of the numbers from start to end up, as training does."""
    for ids in batches(start, end):
        table.lookup(ids, train=True)


def batches(start: int, end: int) -> Iterator[Array]:
    """Yields the ids (n,) int64 of the numbers from start to end, all distinct and spread over the 64 bits."""
    for first in range(start, end, BATCH):
        ids = np.arange(first, min(end, first + BATCH), dtype=np.uint64)
        # The finaliser of SplitMix64, which is a bijection (Steele et al., "Fast splittable pseudorandom number
        # generators", 2014).
        ids = (ids ^ (ids >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        ids = (ids ^ (ids >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        yield (ids ^ (ids >> np.uint64(31))).view(np.int64)


def check_none_late(table: EmbeddingTable) -> None:
    """Raises AssertionError if an id that is seen for the second time has no row."""
    ids = next(batches(0, BATCH))
    table.lookup(ids, train=True)
    try:
        table.export_ids(ids)
    except ValueError as error:
        raise AssertionError(f"an id was seen {ADMIT_AFTER} times and has no row: {error}") from error
