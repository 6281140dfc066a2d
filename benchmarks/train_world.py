"""Makes what the training benchmarks train: tables whose rows are all there, and batches of one id a table and sample.

K batches, T tables, B samples, R rows of a table, D dim.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from benchmarks._limits import ByteLimit
from benchmarks.catalog import Run
from benchmarks.dram_world import FEATURES
from benchmarks.measure import Contestant, per_second
from benchmarks.peers.training_program import first_rows, gradient
from benchmarks.traffic import Array, Traffic, random_ids
from loadtest.popularity import zipf
from trainer.embedding import (
    EmbeddingBag,
    EmbeddingCollection,
    EmbeddingTable,
    RowMemory,
    SparseOptimizer,
    SparseRule,
    optimizer_classes,
)

BATCH = 2048
BATCHES = 48
ROWS, QUICK_ROWS = 200_000, 20_000
LR = 0.05
_LIMIT_BYTES, _QUICK_LIMIT_BYTES = 1 << 29, 1 << 26


class TrainWorld:
    """Batches of Zipf(1.05) over T tables of R rows: as row numbers for peers, and as 63-bit ids for us."""

    def __init__(self, rows: int, *, tables: int = FEATURES, batch: int = BATCH, batches: int = BATCHES) -> None:
        self.rows = rows
        self.batch = batch
        #: (R,) for each table.
        self.ids = [random_ids(rows, seed=table + 1) for table in range(tables)]
        traffic = [Traffic(zipf(rows), seed=100 + table) for table in range(tables)]
        #: (K, T, B)
        self.numbers = np.stack([each.batches(batches, batch) for each in traffic], axis=1)

    @property
    def tables(self) -> int:
        """The number T of tables."""
        return len(self.ids)

    @cached_property
    def inputs(self) -> list[dict[str, Tensor]]:
        """The inputs of a collection whose features are c0, c1, ..., for each batch."""
        offsets = torch.arange(self.batch + 1)
        made = []
        for numbers in self.numbers:
            inputs = {f"c{table}.offsets": offsets for table in range(self.tables)}
            for table, ids in enumerate(self.ids):
                inputs[f"c{table}.values"] = torch.from_numpy(ids[numbers[table]])
            made.append(inputs)
        return made

    @cached_property
    def distinct(self) -> float:
        """The mean number of rows that a batch reads and steps."""
        return float(np.mean([sum(len(np.unique(own)) for own in numbers) for numbers in self.numbers]))

    def bytes_of_batch(self, dim: int, slots: int) -> float:
        """Returns the bytes that a batch must move at least.

        Each row is read and written once with its optimizer values, the ids are read, the outputs are written, and
        their gradients read.
        """
        occurrences = self.tables * self.batch
        return 8 * self.distinct * (dim + slots) + 8 * occurrences + 8 * occurrences * dim

    def row_memory_bytes(self, dim: int, slots: int) -> int:
        """Estimates the memory of all tables."""
        return self.tables * self.rows * (4 * (dim + slots) + 48)

    def fill(self, table: EmbeddingTable, number: int) -> None:
        """Gives a table all its rows, as the peers' tables begin, and optimizer values of 0."""
        uses = np.ones(self.rows, np.uint32)
        table.restore(
            self.ids[number],
            first_rows(number, self.rows, table.dim),
            np.zeros((self.rows, table.slots), np.float32),
            uses,
            uses * np.uint32(table.stamp),
            uses * np.uint32(0),
        )

    def rows_of(self, tables: list[EmbeddingTable], index: int) -> Array:
        """Returns the rows (T, B, D) of a batch as they are now."""
        numbers = self.numbers[index]
        return np.stack(
            [table.lookup(ids[own], train=False) for table, ids, own in zip(tables, self.ids, numbers, strict=True)]
        )


class Embeddings:
    """A collection over tables of a world, and their optimizer; a step ends with a given gradient.

    memory: bounds the DRAM of the tables.
    """

    def __init__(self, world: TrainWorld, dim: int, rule: SparseRule, memory: RowMemory | None = None) -> None:
        self.tables = [
            EmbeddingTable(f"t{number}", dim, optimizer=rule, initial_accumulator=0.0, memory=memory)
            for number in range(world.tables)
        ]
        for number, table in enumerate(self.tables):
            world.fill(table, number)
        self._world = world
        self._collection = EmbeddingCollection(
            {f"c{number}": EmbeddingBag(table) for number, table in enumerate(self.tables)}
        )
        self._optimizer = sparse_optimizer(rule, self.tables)
        self._gradient = torch.from_numpy(gradient(world.batch, world.tables * dim))

    @property
    def slots(self) -> int:
        """Optimizer values of a row."""
        return self.tables[0].slots

    def step(self, turn: int) -> None:
        """Trains batch `turn`."""
        self.train(self._world.inputs[turn % len(self._world.inputs)])

    def train(self, inputs: Mapping[str, Tensor]) -> None:
        """Trains one batch."""
        self._collection(inputs).pooled.backward(self._gradient)
        self._optimizer.step()


def sparse_optimizer(rule: SparseRule, tables: list[EmbeddingTable]) -> SparseOptimizer:
    """Returns the optimizer of tables with the learning rate and the eps that peers are given."""
    numbers = {"lr": LR}
    if eps_of(rule):
        numbers["eps"] = eps_of(rule)
    made: SparseOptimizer = optimizer_classes()[rule](tables, **numbers)
    return made


def eps_of(rule: SparseRule) -> float:
    """Returns what the denominator of a rule is given; 0 for rules without one.

    That of Adam is tiny: torch.optim.SparseAdam adds it before it corrects v for the start, we add it after.
    """
    if rule in ("adam", "adamw", "rowwise_adam", "lamb"):
        return 1e-15
    return 1e-8 if rule in ("adagrad", "rowwise_adagrad", "adagrad_decay") else 0.0


class Cores:
    """Runs contestants on some cores, with as many threads of torch; otherwise the process keeps all of them."""

    def __init__(self) -> None:
        self._all = sorted(os.sched_getaffinity(0))

    @property
    def count(self) -> int:
        """The number of cores that the process may use."""
        return len(self._all)

    def on(self, count: int, contestant: Contestant) -> Contestant:
        """Returns a contestant that runs on the last `count` cores."""

        def run(turn: int) -> float:
            threads = torch.get_num_threads()
            os.sched_setaffinity(0, self._all[-count:])
            torch.set_num_threads(count)
            try:
                return contestant(turn)
            finally:
                os.sched_setaffinity(0, self._all)
                torch.set_num_threads(threads)

        return run


def copied_bytes(run: Run) -> Contestant:
    """Returns a contestant that gives the bytes a second, read and written, that one core copies."""
    limit = ByteLimit(_QUICK_LIMIT_BYTES if run.quick else _LIMIT_BYTES)
    return per_second(lambda _: limit.copy(), 2.0 * limit.memory_bytes(), **run.steady)
