"""Measures the memory of a row in DRAM beyond its own bytes: by the store's account, and by the kernel's."""

from __future__ import annotations

import os

from benchmarks.catalog import Run
from benchmarks.dram_world import filled_table
from benchmarks.machine import rss_bytes
from benchmarks.served_table import Served
from benchmarks.traffic import Array

BYTES_BESIDE_ROW = 22.0
_DIM = 16
_WARM_ROWS = 500_000


def of_a_store(run: Run, served: Served, what: str) -> None:
    """Divides all memory that a full store takes in DRAM, index, counts and estimates included, by its rows."""
    stats = served.store.stats()
    beside = stats.bytes["dram"] / stats.rows["dram"] - 4 * served.dim
    _row(run, f"memory of a row beyond its {4 * served.dim} bytes, {what}", [beside])


def of_a_table(run: Run, ids: Array) -> None:
    """Measures a table without a bound, filled from empty: its own account, and resident memory."""
    told, resident = [], []
    for _ in range(3):
        filled_table(ids[:_WARM_ROWS], _DIM)  # memory that the allocator keeps afterwards belongs to no row
    for _ in range(1 if run.quick else 3):
        before = rss_bytes(os.getpid())
        table = filled_table(ids, _DIM)
        told.append(table.memory_bytes() / len(ids) - 4 * _DIM)
        resident.append((rss_bytes(os.getpid()) - before) / len(ids) - 4 * _DIM)
        del table
    for account, figures in (("by its own account", told), ("resident", resident)):
        _row(run, f"memory of a row beyond its {4 * _DIM} bytes, one table, {account}", figures)


def _row(run: Run, claim: str, figures: list[float]) -> None:
    bound = [BYTES_BESIDE_ROW] * len(figures)
    run.report.pairs(claim, figures, bound, "bound", unit="B", target=1.0, less_is_better=True)
