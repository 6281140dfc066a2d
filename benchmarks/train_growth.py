"""Claim about a table that grows from empty: no step is much slower than the steady one, because nothing is copied."""

from __future__ import annotations

import time

import numpy as np
import torch

from benchmarks.catalog import Run
from benchmarks.measure import Contestant
from benchmarks.traffic import Array, random_ids
from benchmarks.train_world import BATCH, Cores, copied_bytes
from trainer.embedding import EmbeddingBag, EmbeddingTable, SparseAdagrad

ROWS, QUICK_ROWS = 20_000_000, 400_000
DIM = 16
PER_BAG = 4
WINDOW = 5
SLOWEST = 1.5
# Of a row: its values and its sums, 16 bytes of index, 12 of uses; logs of changes come on top.
_ROW_BYTES = 8 * DIM + 28
_MAX_S = 180.0


def growth(run: Run) -> None:
    """Lets a table grow by 8,192 new ids a step, again and again, on one core."""
    rows = run.size(ROWS, QUICK_ROWS)
    if run.lacks_memory(rows * 3 * _ROW_BYTES // 2, "growth"):
        return
    found: dict[str, float] = {}
    ids = random_ids(rows)

    def slowest(_: int) -> float:
        found.update(figures(step_times(ids)))
        return found["slowest"]

    cores = Cores()
    contestants: dict[str, Contestant] = {"ours": cores.on(1, slowest), "copy": cores.on(1, copied_bytes(run))}
    contestants |= {name: lambda _, n=name: found[n] for name in ("steady step", "single", "last tenth")}  # type: ignore[misc]
    samples = run.interleave(contestants, max_s=_MAX_S)
    samples.add("memory bandwidth", lambda each: BATCH * PER_BAG * _ROW_BYTES / each["copy"])
    what = f"a table from empty to {rows:,} rows, adagrad d{DIM}, {BATCH * PER_BAG:,} new ids a step, 1 core"
    for claim, ours, against, target in (
        (f"slowest median of {WINDOW} steps", "ours", "steady step", 1 / SLOWEST),
        ("slowest single step", "single", "steady step", None),
        ("steps of the last tenth", "last tenth", "steady step", None),
        ("steady step", "steady step", "memory bandwidth", None),
    ):
        run.report.compare(
            f"{what}: {claim}",
            samples,
            against,
            ours=ours,
            unit="ms",
            scale=1e3,
            target=target,
            less_is_better=True,
        )
    run.settle(samples)


def step_times(ids: Array) -> Array:
    """Trains a new table on these ids, each once; returns the seconds of each step."""
    table = EmbeddingTable("t", DIM, optimizer="adagrad")
    bag = EmbeddingBag(table)
    optimizer = SparseAdagrad([table])
    offsets = torch.arange(0, BATCH * PER_BAG + 1, PER_BAG)
    gradient = torch.full((BATCH, DIM), 0.01)
    batches = torch.from_numpy(ids[: len(ids) // (BATCH * PER_BAG) * (BATCH * PER_BAG)]).view(-1, BATCH * PER_BAG)
    seconds = np.empty(len(batches))
    for turn, values in enumerate(batches):
        began = time.perf_counter()
        bag(values, offsets).backward(gradient)
        optimizer.step()
        seconds[turn] = time.perf_counter() - began
    if table.size() != len(batches) * BATCH * PER_BAG:
        raise AssertionError(f"the table has {table.size():,} rows after {len(batches):,} steps: no figure counts")
    return seconds


def figures(seconds: Array) -> dict[str, float]:
    """Returns the steady step (the median), the slowest median of a window, the slowest step, and the last tenth's.

    seconds: (n,), n of at least WINDOW.
    """
    windows = np.median(np.lib.stride_tricks.sliding_window_view(seconds, WINDOW), axis=1)
    return {
        "steady step": float(np.median(seconds)),
        "slowest": float(windows.max()),
        "single": float(seconds.max()),
        "last tenth": float(np.median(seconds[-max(1, len(seconds) // 10) :])),
    }
