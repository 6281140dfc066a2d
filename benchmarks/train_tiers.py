"""Claims about tables four times their DRAM budget: training goes on at a good part of the speed of all in DRAM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle

import numpy as np
from torch import Tensor

from benchmarks.catalog import Run
from benchmarks.gauge import QUIET_CORES_DISK
from benchmarks.measure import Contestant, per_second
from benchmarks.train_step import DlrmBatches, Training
from benchmarks.train_world import QUICK_ROWS, ROWS, Embeddings, TrainWorld
from trainer.embedding import RowMemory

TIMES = 4
OVER_DRAM = 0.6
DIM = 16
CHECKED_STEPS = 3
WARM_STEPS, QUICK_WARM_STEPS = 400, 10
BATCHES = 256
_MAX_S = 120.0
_SAMPLES = 1e-3
_Make = Callable[[RowMemory | None], Embeddings | Training]


def tiers(run: Run) -> None:
    """Trains the same batches with all rows in DRAM, and with a quarter of that memory: tables alone, and a DLRM."""
    world = DlrmBatches(run.size(ROWS, QUICK_ROWS), batches=BATCHES)
    if run.lacks_memory(2 * world.row_memory_bytes(DIM, DIM), "tiers"):
        return
    beside_dram(run, world, "embeddings", lambda memory: Embeddings(world, DIM, "adagrad", memory))
    if not run.is_late("tiers, DLRM step"):
        beside_dram(run, world, "DLRM step", lambda memory: Training(world, DIM, "adagrad", memory))


def beside_dram(run: Run, world: TrainWorld, what: str, make: _Make) -> None:
    """Measures what `make` returns with a bounded memory beside what it returns without one."""
    dram = make(None)
    budget = sum(table.memory_bytes() for table in dram.tables) // TIMES
    with RowMemory(budget, run.work / "tiers") as memory:
        bounded = make(memory)
        turns = memory.held(cycle(range(len(world.inputs))), lambda turn: ids_by_table(world.inputs[turn]))

        def step(_: int) -> None:
            bounded.step(next(turns))

        for turn in range(CHECKED_STEPS):
            dram.step(turn)
            step(turn)
        if not np.array_equal(world.rows_of(dram.tables, 0), world.rows_of(bounded.tables, 0)):
            raise AssertionError(f"{what}: rows of the bounded tables are not those of DRAM: no figure counts")
        for turn in range(QUICK_WARM_STEPS if run.quick else WARM_STEPS):
            step(turn)
        before = memory.figures()
        contestants: dict[str, Contestant] = {
            "ours": per_second(step, world.batch, **run.steady),
            "all in DRAM": per_second(dram.step, world.batch, **run.steady),
        }
        samples = run.interleave(contestants, max_s=_MAX_S, quiet_cores=QUIET_CORES_DISK)
        after = memory.figures()
        run.report.compare(
            f"{what}: {world.tables} tables of {world.rows:,} rows, adagrad d{DIM}, {TIMES}x their DRAM budget",
            samples,
            "all in DRAM",
            unit="k samples/s",
            scale=_SAMPLES,
            target=OVER_DRAM,
        )
        run.report.remark(
            f"tiers, {what}: {after.line()}; while measured, {after.rows_fetched - before.rows_fetched:,} fetched and "
            f"{after.rows_written - before.rows_written:,} written; the kernel may hold the files in memory"
        )
        run.settle(samples)


def ids_by_table(inputs: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Returns the ids of a batch by the name of their table."""
    return {
        f"t{name.removeprefix('c').removesuffix('.values')}": values.numpy()
        for name, values in inputs.items()
        if name.endswith(".values")
    }
